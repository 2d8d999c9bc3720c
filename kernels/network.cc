// The pass, layer by layer. Each step is cut into tasks that the threads take as they come; steps of few rows stay with
// the caller, because handing them out costs more than they do.
#include "network.h"

#include <algorithm>
#include <cstring>

namespace refrain {

namespace {

// Least work of a task: multiplications, of rows and of products.
constexpr size_t kTaskProducts = 200'000;
constexpr size_t kTaskRows = 8;
// Below this many tasks for each thread attention is cut by partitions too.
constexpr size_t kFewTasks = 4;

size_t product_rows(const Projection& matrices) {
  size_t rows = 0;
  for (const Matrix& matrix : matrices) rows += matrix.packed().rows;
  return rows;
}

}  // namespace

/// Neighbouring tokens that attend together.
struct Network::Tile {
  size_t first;
  size_t count;
};

struct Network::Buffers {
  const std::vector<Token>* tokens = nullptr;
  const std::vector<SlotView>* slots = nullptr;
  const int32_t* extra = nullptr;
  // Of each token, what attention reads.
  std::vector<int32_t> sees;
  std::vector<int32_t> extra_at;
  std::vector<int32_t> extras;
  std::vector<Tile> tiles;
  size_t partitions = 0;

  size_t count = 0;
  std::vector<float> x;
  std::vector<float> normed;
  std::vector<float> qkv;
  std::vector<float> attended;
  std::vector<float> gate_up;
  std::vector<float> hidden;

  // What products read: one input at a time.
  Activations input;
  std::vector<int8_t> values[2];
  std::vector<float> scale[2];
  std::vector<float> sum[2];

  // States of attention: for each thread one of a tile so far and one of a partition; or one for each partition.
  std::vector<float> states;
};

Network::Network(const NetworkShape& shape, NetworkWeights weights, const RowKernels& kernels, size_t threads)
    : shape_(shape),
      weights_(std::move(weights)),
      kernels_(kernels),
      pool_(threads),
      buffers_(std::make_unique<Buffers>()) {}

Network::~Network() = default;

template <typename Work>
void Network::each_row(size_t count, const Work& work) {
  const size_t tasks = count < kTaskRows ? 1 : (count + kTaskRows - 1) / kTaskRows;
  pool_.run(tasks, [&](size_t task, size_t) {
    const size_t end = std::min(count, (task + 1) * kTaskRows);
    for (size_t row = task * kTaskRows; row < end; row++) work(row);
  });
}

void Network::forward(const std::vector<Token>& tokens, const std::vector<SlotView>& slots, const int32_t* extra,
                      float* logits) {
  Buffers& b = *buffers_;
  b.tokens = &tokens;
  b.slots = &slots;
  b.extra = extra;
  b.count = tokens.size();
  b.sees.clear();
  b.extra_at.clear();
  b.extras.clear();
  for (const Token& token : tokens) {
    b.sees.push_back(token.sees);
    b.extra_at.push_back(token.extra);
    b.extras.push_back(token.extras);
  }
  plan_tiles();
  b.x.resize(b.count * shape_.dim);
  b.normed.resize(b.count * shape_.dim);
  b.qkv.resize(b.count * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
  b.attended.resize(b.count * shape_.heads * shape_.head_dim);
  b.gate_up.resize(b.count * 2 * shape_.hidden_dim);
  b.hidden.resize(b.count * shape_.hidden_dim);
  each_row(b.count, [&](size_t row) {
    weights_.embedding->look_up(static_cast<size_t>(tokens[row].id), b.x.data() + row * shape_.dim);
  });
  for (size_t l = 0; l < shape_.layers; l++) {
    attention_layer(weights_.layers[l], l);
    feed_forward_layer(weights_.layers[l]);
  }
  logits_of(tokens, logits);
}

namespace {

bool joins(const Token& first, const Token& before, const Token& token) {
  if (before.slot != token.slot || (before.extras == 0) != (token.extras == 0)) return false;
  if (token.extras == 0) return before.sees <= token.sees;
  const int32_t apart = token.sees - first.sees;
  return apart < static_cast<int32_t>(kKeyBlock) && -apart < static_cast<int32_t>(kKeyBlock);
}

}  // namespace

/// Neighbours of one slot attend together: tokens that see one behind the other, or branches that part at about one place.
void Network::plan_tiles() {
  Buffers& b = *buffers_;
  const std::vector<Token>& tokens = *b.tokens;
  const size_t most = std::max<size_t>(1, kMostQueryRows / (shape_.heads / shape_.kv_heads));
  b.tiles.clear();
  int32_t longest = 0;
  for (size_t row = 0; row < b.count; row++) {
    const Token& token = tokens[row];
    longest = std::max(longest, token.sees + token.extras);
    Tile* const last = b.tiles.empty() ? nullptr : &b.tiles.back();
    if (last != nullptr && last->count < most && joins(tokens[last->first], tokens[row - 1], token)) {
      last->count++;
    } else {
      b.tiles.push_back({row, 1});
    }
  }
  b.partitions = (static_cast<size_t>(longest) + kPartition - 1) / kPartition;
}

void Network::attention_layer(const LayerWeights& layer, size_t l) {
  Buffers& b = *buffers_;
  const size_t width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  const size_t attended = shape_.heads * shape_.head_dim;
  each_row(b.count, [&](size_t row) {
    kernels_.norm(b.x.data() + row * shape_.dim, layer.attention_norm.data(), shape_.epsilon, shape_.dim,
                  b.normed.data() + row * shape_.dim);
  });
  read(b.normed.data(), shape_.dim, layer.qkv, b.count);
  project(layer.qkv, b.count, b.qkv.data(), width, false);
  each_row(b.count, [&](size_t row) { place(layer, l, row); });
  attend(l);
  read(b.attended.data(), attended, layer.attention_output, b.count);
  project(layer.attention_output, b.count, b.x.data(), shape_.dim, true);
}

void Network::feed_forward_layer(const LayerWeights& layer) {
  Buffers& b = *buffers_;
  const size_t hidden = shape_.hidden_dim;
  each_row(b.count, [&](size_t row) {
    kernels_.norm(b.x.data() + row * shape_.dim, layer.feed_forward_norm.data(), shape_.epsilon, shape_.dim,
                  b.normed.data() + row * shape_.dim);
  });
  read(b.normed.data(), shape_.dim, layer.gate_up, b.count);
  project(layer.gate_up, b.count, b.gate_up.data(), 2 * hidden, false);
  each_row(b.count, [&](size_t row) {
    const float* const gate = b.gate_up.data() + row * 2 * hidden;
    kernels_.gate(gate, gate + hidden, hidden, b.hidden.data() + row * hidden);
  });
  read(b.hidden.data(), hidden, layer.down, b.count);
  project(layer.down, b.count, b.x.data(), shape_.dim, true);
}

/// Norms, turns and rounds one token's q, k and v; k and v go to their row of the slot.
void Network::place(const LayerWeights& layer, size_t l, size_t row) {
  Buffers& b = *buffers_;
  const Token& token = (*b.tokens)[row];
  const SlotView& slot = (*b.slots)[static_cast<size_t>(token.slot)];
  const size_t dim = shape_.head_dim;
  const size_t width = (shape_.heads + 2 * shape_.kv_heads) * dim;
  float* const query = b.qkv.data() + row * width;
  float* const key = query + shape_.heads * dim;
  float* const value = key + shape_.kv_heads * dim;
  const size_t position = static_cast<size_t>(token.position());
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  for (size_t h = 0; h < shape_.heads; h++) {
    float* const head = query + h * dim;
    if (!layer.query_norm.empty()) kernels_.norm(head, layer.query_norm.data(), shape_.epsilon, dim, head);
    rotate(head, position);
    for (size_t d = 0; d < dim; d++) head[d] *= scale;
  }
  for (size_t h = 0; h < shape_.kv_heads; h++) {
    float* const head = key + h * dim;
    if (!layer.key_norm.empty()) kernels_.norm(head, layer.key_norm.data(), shape_.epsilon, dim, head);
    rotate(head, position);
    const size_t at = (h * slot.capacity + static_cast<size_t>(token.row)) * dim;
    if (shape_.round_kv) {
      kernels_.round_to_half(head, dim, slot.k[l] + at);
      kernels_.round_to_half(value + h * dim, dim, slot.v[l] + at);
    } else {
      std::memcpy(slot.k[l] + at, head, dim * sizeof(float));
      std::memcpy(slot.v[l] + at, value + h * dim, dim * sizeof(float));
    }
  }
}

void Network::rotate(float* head, size_t position) const {
  const size_t half = shape_.rope_dim / 2;
  const float* const cos = weights_.cos.data() + position * half;
  const float* const sin = weights_.sin.data() + position * half;
  const size_t step = shape_.interleaved ? 2 : 1;
  const size_t apart = shape_.interleaved ? 1 : half;
  for (size_t i = 0; i < half; i++) {
    float& first = head[i * step];
    float& second = head[i * step + apart];
    const float turned = first * cos[i] - second * sin[i];
    second = second * cos[i] + first * sin[i];
    first = turned;
  }
}

AttentionTask Network::task_of(const Tile& tile, size_t kv_head, size_t l) const {
  const Buffers& b = *buffers_;
  const Token& token = (*b.tokens)[tile.first];
  const SlotView& slot = (*b.slots)[static_cast<size_t>(token.slot)];
  const size_t dim = shape_.head_dim;
  const size_t group = shape_.heads / shape_.kv_heads;
  const size_t width = (shape_.heads + 2 * shape_.kv_heads) * dim;
  const size_t head = kv_head * slot.capacity * dim;
  return {tile.count,
          group,
          dim,
          b.qkv.data() + tile.first * width + kv_head * group * dim,
          width,
          slot.k[l] + head,
          slot.v[l] + head,
          b.sees.data() + tile.first,
          b.extra_at.data() + tile.first,
          b.extras.data() + tile.first,
          b.extra};
}

namespace {

// States one after another: [greatest: rows][sums: rows, 16][values: rows, dim].
size_t state_floats(size_t rows, size_t dim) { return rows * (1 + 16 + dim); }

AttentionState state_at(float* start, size_t rows) { return {start, start + rows, start + rows * 17}; }

}  // namespace

void Network::attend(size_t l) {
  Buffers& b = *buffers_;
  const size_t tasks = b.tiles.size() * shape_.kv_heads;
  if (b.partitions > 1 && tasks < kFewTasks * pool_.threads()) return attend_apart(l);
  const size_t dim = shape_.head_dim;
  const size_t group = shape_.heads / shape_.kv_heads;
  const size_t floats = state_floats(kMostQueryRows, dim);
  b.states.resize(std::max(b.states.size(), pool_.threads() * 2 * floats));
  pool_.run(tasks, [&](size_t task, size_t thread) {
    // The last tiles see most: they go first, so that no thread ends alone with one.
    const size_t kv_head = task % shape_.kv_heads;
    const Tile& tile = b.tiles[b.tiles.size() - 1 - task / shape_.kv_heads];
    const size_t rows = tile.count * group;
    const AttentionState whole = state_at(b.states.data() + thread * 2 * floats, rows);
    const AttentionState part = state_at(b.states.data() + (thread * 2 + 1) * floats, rows);
    const AttentionTask what = task_of(tile, kv_head, l);
    kernels_.attend(what, 0, whole);
    for (size_t p = 1; p < b.partitions && kernels_.attend(what, p, part); p++) {
      for (size_t row = 0; row < rows; row++) kernels_.join(whole, row, part, row, dim);
    }
    for (size_t row = 0; row < rows; row++) {
      float* const out = b.attended.data() + (tile.first + row / group) * shape_.heads * dim +
                         (kv_head * group + row % group) * dim;
      kernels_.finish(whole, row, dim, out);
    }
  });
}

/// The same with a task for each partition, for few tokens: the states are joined in the same order afterwards.
void Network::attend_apart(size_t l) {
  Buffers& b = *buffers_;
  const size_t dim = shape_.head_dim;
  const size_t group = shape_.heads / shape_.kv_heads;
  const size_t floats = state_floats(kMostQueryRows, dim);
  const size_t parts = b.tiles.size() * shape_.kv_heads;
  b.states.resize(std::max(b.states.size(), parts * b.partitions * floats));
  const auto state_of = [&](size_t part, size_t p, size_t rows) {
    return state_at(b.states.data() + (part * b.partitions + p) * floats, rows);
  };
  pool_.run(parts * b.partitions, [&](size_t task, size_t) {
    const size_t part = task / b.partitions;
    const Tile& tile = b.tiles[part / shape_.kv_heads];
    const size_t p = task % b.partitions;
    kernels_.attend(task_of(tile, part % shape_.kv_heads, l), p, state_of(part, p, tile.count * group));
  });
  for (size_t part = 0; part < parts; part++) {
    const Tile& tile = b.tiles[part / shape_.kv_heads];
    const size_t rows = tile.count * group;
    const AttentionState whole = state_of(part, 0, rows);
    for (size_t row = 0; row < rows; row++) {
      for (size_t p = 1; p < b.partitions; p++) kernels_.join(whole, row, state_of(part, p, rows), row, dim);
      float* const out = b.attended.data() + (tile.first + row / group) * shape_.heads * dim +
                         (part % shape_.kv_heads * group + row % group) * dim;
      kernels_.finish(whole, row, dim, out);
    }
  }
}

/// Makes rows of `values` the input of products with `into`.
void Network::read(const float* values, size_t cols, const Projection& into, size_t count) {
  Buffers& b = *buffers_;
  b.input.values = values;
  b.input.cols = cols;
  b.input.count = count;
  QuantizedRows* const forms[] = {&b.input.by16, &b.input.by32};
  for (size_t form = 0; form < 2; form++) {
    const size_t block = form == 0 ? 16 : 32;
    const bool wanted = std::any_of(into.begin(), into.end(), [&](const Matrix& m) { return m.packed().block == block; });
    if (!wanted) continue;
    const size_t rows = (count + kPanelRows - 1) / kPanelRows * kPanelRows;
    b.values[form].resize(std::max(b.values[form].size(), rows * cols * 2));
    b.scale[form].resize(std::max(b.scale[form].size(), rows * cols / block));
    b.sum[form].resize(std::max(b.sum[form].size(), rows * cols / block));
    *forms[form] = {b.values[form].data(), b.scale[form].data(), b.sum[form].data()};
    each_row(count, [&](size_t row) { kernels_.quantize(values + row * cols, cols, block, row, *forms[form]); });
  }
}

/// The results of all matrices side by side into `out`.
void Network::project(const Projection& matrices, size_t count, float* out, size_t stride, bool add) {
  const size_t per_tile = kTileRows * buffers_->input.cols * count;
  const size_t all = product_rows(matrices) / kTileRows;
  const size_t fair = std::max<size_t>(1, all / (pool_.threads() * 4));
  const size_t step = std::min(std::max<size_t>(1, kTaskProducts / per_tile), fair);
  // Tasks of all matrices in one row: where each matrix's begin.
  std::vector<size_t> begins{0};
  for (const Matrix& matrix : matrices) begins.push_back(begins.back() + (matrix.packed().tile_count() + step - 1) / step);
  pool_.run(begins.back(), [&](size_t task, size_t) {
    size_t m = 0;
    size_t column = 0;
    while (task >= begins[m + 1]) column += matrices[m++].packed().rows;
    const PackedMatrix& matrix = matrices[m].packed();
    const size_t first = (task - begins[m]) * step;
    const size_t last = std::min(matrix.tile_count(), first + step);
    kernels_.product(matrix, buffers_->input, first, last, out + column, stride, add);
  });
}

void Network::logits_of(const std::vector<Token>& tokens, float* logits) {
  Buffers& b = *buffers_;
  size_t count = 0;
  for (size_t row = 0; row < b.count; row++) {
    if (!tokens[row].wants_logits) continue;
    kernels_.norm(b.x.data() + row * shape_.dim, weights_.output_norm.data(), shape_.epsilon, shape_.dim,
                  b.normed.data() + count * shape_.dim);
    count++;
  }
  if (count == 0) return;
  read(b.normed.data(), shape_.dim, weights_.head, count);
  project(weights_.head, count, logits, shape_.vocab_size, false);
}

}  // namespace refrain
