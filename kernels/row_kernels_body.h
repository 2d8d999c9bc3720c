// The kernels themselves, included once for each form into a namespace of its own, behind what the form defines:
//
//   Floats, Ints          16 lanes: vectors of the compiler
//   all(x)                x in every lane
//   fused(a, b, c)        a * b + c, rounded once
//   four_everywhere(x)    the four bytes at x in every lane
//   dot4(sum, w, x)       sum + products of each lane's four unsigned bytes of w with its four signed bytes of x
//   halved(v)             rounded to fp16 and back
//   store_bytes(to, v)    the lowest byte of each lane
//   greatest_of(v)        the greatest lane
//   transpose16(rows, stride, out)   out[i * stride + lane] = rows[lane][i] for i < 16
//
// Everything else is written here, so that forms differ in speed and not in bits. The build allows no contraction of
// a * b + c that is not asked for.

inline Floats load(const float* from) {
  Floats value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline Ints load_ints(const uint8_t* from) {
  Ints value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

inline void store(float* to, Floats value) { __builtin_memcpy(to, &value, sizeof value); }

inline Floats greater(Floats a, Floats b) { return a > b ? a : b; }

inline Floats as_floats(Ints bits) {
  Floats value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline Ints as_ints(Floats value) {
  Ints bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float sum_of(Floats value) {
  float lanes[16];
  store(lanes, value);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// e^x to 2 units in the last place; below -87 it is zero, above 87 it stays there.
inline Floats exp_of(Floats x) {
  const Floats limited = x > all(87.0f) ? all(87.0f) : x;
  const Floats shift = all(12582912.0f);
  const Floats turns = fused(limited, all(1.44269504f), shift) - shift;
  Floats rest = fused(turns, all(-0.693359375f), limited);
  rest = fused(turns, all(2.12194440e-4f), rest);
  Floats value = all(1.9875691500e-4f);
  value = fused(value, rest, all(1.3981999507e-3f));
  value = fused(value, rest, all(8.3334519073e-3f));
  value = fused(value, rest, all(4.1665795894e-2f));
  value = fused(value, rest, all(1.6666665459e-1f));
  value = fused(value, rest, all(5.0000001201e-1f));
  value = fused(value * rest, rest, rest) + all(1.0f);
  const Ints exponent = (as_ints(turns + shift) - as_ints(shift)) << 23;
  const Floats scaled = as_floats(as_ints(value) + exponent);
  return x < all(-87.0f) ? Floats{} : scaled;
}

inline float exp_one(float x) {
  float lanes[16];
  store(lanes, exp_of(all(x)));
  return lanes[0];
}

void norm(const float* x, const float* weight, float epsilon, size_t count, float* out) {
  Floats squares{};
  for (size_t i = 0; i < count; i += 16) {
    const Floats value = load(x + i);
    squares = fused(value, value, squares);
  }
  const float mean = sum_of(squares) / static_cast<float>(count);
  const Floats factor = all(1.0f / __builtin_sqrtf(mean + epsilon));
  for (size_t i = 0; i < count; i += 16) store(out + i, load(x + i) * factor * load(weight + i));
}

void gate(const float* gate, const float* up, size_t count, float* out) {
  for (size_t i = 0; i < count; i += 16) {
    const Floats value = load(gate + i);
    store(out + i, value / (all(1.0f) + exp_of(-value)) * load(up + i));
  }
}

void round_to_half(const float* x, size_t count, float* out) {
  for (size_t i = 0; i < count; i += 16) store(out + i, halved(load(x + i)));
}

void quantize(const float* x, size_t cols, size_t block, size_t row, const QuantizedRows& out) {
  const Floats shift = all(12582912.0f);
  size_t at = row / kPanelRows * (cols / block) * kPanelRows + row % kPanelRows;
  for (size_t start = 0; start < cols; start += block, at += kPanelRows) {
    Floats most{};
    for (size_t i = 0; i < block; i += 16) {
      const Floats value = load(x + start + i);
      most = greater(greater(value, -value), most);
    }
    const float greatest = greatest_of(most);
    const float inverse = greatest > 0 ? 16256.0f / greatest : 0.0f;
    int8_t* const values = out.values + at * 2 * block;
    Ints total{};
    for (size_t i = 0; i < block; i += 16) {
      // The sum with 1.5 * 2^23 rounds to an integer, which stands in its lowest bits.
      const Floats scaled = load(x + start + i) * all(inverse);
      const Ints whole = as_ints(scaled + shift) - as_ints(shift);
      const Ints high = (whole + 64) >> 7;
      total += whole;
      store_bytes(values + i, high);
      store_bytes(values + block + i, whole - (high << 7));
    }
    int32_t sum = 0;
    for (int lane = 0; lane < 16; lane++) sum += total[lane];
    out.scale[at] = greatest / 16256.0f;
    out.sum[at] = out.scale[at] * static_cast<float>(sum);
  }
}

// `Count` rows of a panel, from row `row` on, against `Tiles` neighbouring tiles, whose sums are [tile][row]. `Lines` is how
// many lines of 64 bytes a block has: 4 of 32 columns, 2 of 16. Two tiles share what is read of the activations.
template <int Count, int Lines, int Tiles>
inline void quantized_tiles(const PackedMatrix& matrix, const uint8_t* tile, const QuantizedRows& x, size_t row,
                            Floats* sums) {
  constexpr size_t kBlock = Lines * 8;
  // Rows abreast: as many sums on their way as the processor has room for.
  constexpr int kAbreast = 4 / Tiles;
  const size_t blocks = matrix.cols / kBlock;
  size_t at = row / kPanelRows * blocks * kPanelRows + row % kPanelRows;
  const size_t products = matrix.products;
  const Ints nibble = Ints{} + 0x0f0f0f0f;
  for (size_t b = 0; b < blocks; b++, at += kPanelRows) {
    const int8_t* const values = x.values + at * 2 * kBlock;
    const float* const scale = x.scale + at;
    const float* const sum = x.sum + at;
    const uint8_t* const scales = tile + products * Lines * 64;
    for (int t = 0; t < Tiles; t++) {
      const Floats offset = load(reinterpret_cast<const float*>(scales + t * matrix.tile_bytes + products * 64));
      for (int r = 0; r < Count; r++) sums[t * Count + r] = fused(offset, all(sum[r]), sums[t * Count + r]);
    }
    for (size_t p = 0; p < products; p++) {
      Ints weights[Tiles][2 * Lines];
      Floats factor[Tiles];
      for (int t = 0; t < Tiles; t++) {
        for (int j = 0; j < Lines; j++) {
          const Ints packed = load_ints(tile + t * matrix.tile_bytes + j * 64);
          weights[t][j] = packed & nibble;
          weights[t][Lines + j] = (packed >> 4) & nibble;
        }
        factor[t] = load(reinterpret_cast<const float*>(scales + t * matrix.tile_bytes + p * 64));
      }
      for (int first = 0; first < Count; first += kAbreast) {
        Ints highs[Tiles][kAbreast] = {};
        Ints lows[Tiles][kAbreast] = {};
        for (int j = 0; j < 2 * Lines; j++) {
          for (int r = 0; r < kAbreast && first + r < Count; r++) {
            const int8_t* const four = values + (first + r) * 2 * kBlock + 4 * j;
            const Ints high = four_everywhere(four);
            const Ints low = four_everywhere(four + kBlock);
            for (int t = 0; t < Tiles; t++) {
              highs[t][r] = dot4(highs[t][r], weights[t][j], high);
              lows[t][r] = dot4(lows[t][r], weights[t][j], low);
            }
          }
        }
        for (int r = 0; r < kAbreast && first + r < Count; r++) {
          const Floats activation = all(scale[first + r]);
          for (int t = 0; t < Tiles; t++) {
            const Floats dot = __builtin_convertvector((highs[t][r] << 7) + lows[t][r], Floats);
            Floats& to = sums[t * Count + first + r];
            to = fused(dot, factor[t] * activation, to);
          }
        }
      }
      tile += Lines * 64;
    }
    tile += (products + 1) * 64;
  }
}

template <int Count>
inline void dense_tile(const PackedMatrix& matrix, const uint8_t* tile, const float* x, Floats* sums) {
  const float* const weights = reinterpret_cast<const float*>(tile);
  for (size_t c = 0; c < matrix.cols; c++) {
    const Floats column = load(weights + c * 16);
    for (int r = 0; r < Count; r++) sums[r] = fused(column, all(x[r * matrix.cols + c]), sums[r]);
  }
}

constexpr size_t kNearBytes = 32 * 1024;

template <int Count, int Tiles>
void product_rows(const PackedMatrix& matrix, const Activations& x, size_t t, size_t row, float* out, size_t stride,
                  bool add) {
  const uint8_t* const tile = matrix.tiles + t * matrix.tile_bytes;
  Floats sums[Tiles * Count];
  for (int i = 0; i < Tiles * Count; i++) {
    sums[i] = matrix.bias == nullptr ? Floats{} : load(matrix.bias + (t + i / Count) * kTileRows);
  }
  if (matrix.block == 32) {
    quantized_tiles<Count, 4, Tiles>(matrix, tile, x.by32, row, sums);
  } else if (matrix.block == 16) {
    quantized_tiles<Count, 2, Tiles>(matrix, tile, x.by16, row, sums);
  } else {
    for (int i = 0; i < Tiles; i++) {
      dense_tile<Count>(matrix, tile + i * matrix.tile_bytes, x.values + row * matrix.cols, sums + i * Count);
    }
  }
  for (int i = 0; i < Tiles * Count; i++) {
    const size_t column = (t + i / Count) * kTileRows;
    float* const to = out + (row + i % Count) * stride + column;
    if (matrix.rows - column >= kTileRows) {
      store(to, add ? load(to) + sums[i] : sums[i]);
    } else {
      for (size_t lane = 0; lane < matrix.rows - column; lane++) to[lane] = add ? to[lane] + sums[i][lane] : sums[i][lane];
    }
  }
}

void product(const PackedMatrix& matrix, const Activations& x, size_t first, size_t last, float* out, size_t stride,
             bool add) {
  using Rows = void (*)(const PackedMatrix&, const Activations&, size_t, size_t, float*, size_t, bool);
  static constexpr Rows kRows[] = {product_rows<1, 1>, product_rows<2, 1>, product_rows<3, 1>, product_rows<4, 1>,
                                   product_rows<5, 1>, product_rows<6, 1>, product_rows<7, 1>, product_rows<8, 1>};
  // Rows that stay in the nearest cache while all tiles go by.
  const size_t near = kNearBytes / (2 * x.cols) / kPanelRows * kPanelRows;
  const size_t rows = near < kPanelRows ? kPanelRows : near;
  for (size_t start = 0; start < x.count; start += rows) {
    const size_t end = x.count - start < rows ? x.count : start + rows;
    for (size_t t = first; t < last;) {
      // A pair needs many sums at once: it is worth it for whole panels alone.
      const bool pair = t + 1 < last && end - start >= kPanelRows;
      for (size_t row = start; row < end; row += kPanelRows) {
        const size_t count = end - row < kPanelRows ? end - row : kPanelRows;
        if (pair && count == kPanelRows) {
          product_rows<kPanelRows, 2>(matrix, x, t, row, out, stride, add);
          continue;
        }
        for (size_t i = t; i < t + (pair ? 2 : 1); i++) kRows[count - 1](matrix, x, i, row, out, stride, add);
      }
      t += pair ? 2 : 1;
    }
  }
}

constexpr float kUnseen = -1e30f;

// Scores of `Count` query rows against a block's keys: keys [head dim, 64], scores [rows, 64].
template <int Count>
inline void score_rows(const float* const* query, const float* keys, size_t head_dim, float* scores) {
  Floats sums[Count][4] = {};
  for (size_t d = 0; d < head_dim; d++) {
    Floats key[4];
    for (int c = 0; c < 4; c++) key[c] = load(keys + d * kKeyBlock + c * 16);
    for (int r = 0; r < Count; r++) {
      const Floats value = all(query[r][d]);
      for (int c = 0; c < 4; c++) sums[r][c] = fused(key[c], value, sums[r][c]);
    }
  }
  for (int r = 0; r < Count; r++) {
    for (int c = 0; c < 4; c++) store(scores + r * kKeyBlock + c * 16, sums[r][c]);
  }
}

// Adds `weights` [rows, 64] times the values of `count` keys to the rows' values, for `Columns` times 16 dimensions.
template <int Count, int Columns>
inline void weigh_rows(const float* weights, const float* const* v, size_t count, size_t column, size_t head_dim,
                       float* values) {
  Floats sums[Count][Columns];
  for (int r = 0; r < Count; r++) {
    for (int c = 0; c < Columns; c++) sums[r][c] = load(values + r * head_dim + column + c * 16);
  }
  for (size_t key = 0; key < count; key++) {
    Floats value[Columns];
    for (int c = 0; c < Columns; c++) value[c] = load(v[key] + column + c * 16);
    for (int r = 0; r < Count; r++) {
      const Floats weight = all(weights[r * kKeyBlock + key]);
      for (int c = 0; c < Columns; c++) sums[r][c] = fused(value[c], weight, sums[r][c]);
    }
  }
  for (int r = 0; r < Count; r++) {
    for (int c = 0; c < Columns; c++) store(values + r * head_dim + column + c * 16, sums[r][c]);
  }
}

template <int Count>
inline void weigh_all(const float* weights, const float* const* v, size_t count, size_t head_dim, float* values) {
  size_t column = 0;
  for (; column + 64 <= head_dim; column += 64) weigh_rows<Count, 4>(weights, v, count, column, head_dim, values);
  for (; column < head_dim; column += 16) weigh_rows<Count, 1>(weights, v, count, column, head_dim, values);
}

// Turns a row's scores into weights: what it does not see weighs nothing, and what came before is scaled to a new greatest.
inline void soften(float* scores, size_t seen, float* greatest, float* sums, float* values, size_t head_dim) {
  for (size_t key = seen; key < kKeyBlock; key++) scores[key] = kUnseen;
  Floats most = load(scores);
  for (size_t c = 16; c < kKeyBlock; c += 16) most = greater(load(scores + c), most);
  const float next = greatest_of(most);
  if (next > *greatest) {
    const Floats shrunk = all(exp_one(*greatest - next));
    store(sums, load(sums) * shrunk);
    for (size_t d = 0; d < head_dim; d += 16) store(values + d, load(values + d) * shrunk);
    *greatest = next;
  }
  Floats total = load(sums);
  for (size_t c = 0; c < kKeyBlock; c += 16) {
    const Floats weight = exp_of(load(scores + c) - all(*greatest));
    store(scores + c, weight);
    total += weight;
  }
  store(sums, total);
}

// Keys that stand at neighbouring positions, wherever their rows are; all of `k` and `v` can be read.
struct KeyBlock {
  const float* k[kKeyBlock];
  const float* v[kKeyBlock];
  size_t count;
};

// The keys at positions [start, start + count) of token `t`; columns behind the last are computed and then weigh nothing.
inline void key_rows(const AttentionTask& task, size_t t, size_t start, KeyBlock& block) {
  const size_t sees = static_cast<size_t>(task.sees[t]);
  for (size_t key = 0; key < kKeyBlock; key++) {
    const size_t position = start + (key < block.count ? key : 0);
    const size_t row = position < sees ? position : static_cast<size_t>(task.rows[task.extra[t] + position - sees]);
    block.k[key] = task.k + row * task.head_dim;
    block.v[key] = task.v + row * task.head_dim;
  }
}

inline size_t length_of(const AttentionTask& task, size_t t) {
  return static_cast<size_t>(task.sees[t]) + static_cast<size_t>(task.extras[t]);
}

// Asks for what is read next: rows lie a page or more apart, where the processor's own look ahead ends.
inline void ask_for(const float* const* rows, size_t count, size_t head_dim) {
  for (size_t key = 0; key < count; key++) {
    for (size_t d = 0; d < head_dim; d += 16) __builtin_prefetch(rows[key] + d, 0, 2);
  }
}

// Query rows [first, end) attend to one block of keys, which starts at position `start`.
void attend_block(const AttentionTask& task, const KeyBlock& block, size_t start, size_t first, size_t end,
                  const AttentionState& state) {
  const size_t dim = task.head_dim;
  alignas(64) float keys[kMostHeadDim * kKeyBlock];
  alignas(64) float scores[kMostQueryRows * kKeyBlock];
  for (size_t key = 0; key < kKeyBlock; key += 16) {
    for (size_t d = 0; d < dim; d += 16) {
      const float* from[16];
      for (int i = 0; i < 16; i++) from[i] = block.k[key + i] + d;
      transpose16(from, kKeyBlock, keys + d * kKeyBlock + key);
    }
  }
  const float* query[kMostQueryRows];
  for (size_t r = first; r < end; r++) {
    query[r] = task.query + (r / task.group) * task.query_stride + (r % task.group) * dim;
  }
  size_t r = first;
  for (; r + 6 <= end; r += 6) score_rows<6>(query + r, keys, dim, scores + r * kKeyBlock);
  for (; r + 3 <= end; r += 3) score_rows<3>(query + r, keys, dim, scores + r * kKeyBlock);
  for (; r < end; r++) score_rows<1>(query + r, keys, dim, scores + r * kKeyBlock);
  for (r = first; r < end; r++) {
    const size_t seen = length_of(task, r / task.group) - start;
    soften(scores + r * kKeyBlock, seen < block.count ? seen : block.count, state.greatest + r, state.sums + r * 16,
           state.values + r * dim, dim);
  }
  const float* const* const v = block.v;
  for (r = first; r + 6 <= end; r += 6) {
    weigh_all<6>(scores + r * kKeyBlock, v, block.count, dim, state.values + r * dim);
  }
  for (; r + 3 <= end; r += 3) weigh_all<3>(scores + r * kKeyBlock, v, block.count, dim, state.values + r * dim);
  for (; r < end; r++) weigh_all<1>(scores + r * kKeyBlock, v, block.count, dim, state.values + r * dim);
}

bool attend(const AttentionTask& task, size_t partition, const AttentionState& state) {
  const size_t rows = task.tokens * task.group;
  for (size_t r = 0; r < rows; r++) state.greatest[r] = kUnseen;
  __builtin_memset(state.sums, 0, rows * 16 * sizeof(float));
  __builtin_memset(state.values, 0, rows * task.head_dim * sizeof(float));
  size_t longest = 0;
  size_t common = static_cast<size_t>(task.sees[0]);
  bool apart = false;
  for (size_t t = 0; t < task.tokens; t++) {
    const size_t sees = static_cast<size_t>(task.sees[t]);
    if (length_of(task, t) > longest) longest = length_of(task, t);
    if (sees < common) common = sees;
    apart = apart || task.extras[t] > 0;
  }
  const size_t end = (partition + 1) * kPartition < longest ? (partition + 1) * kPartition : longest;
  KeyBlock block;
  for (size_t start = partition * kPartition; start < end; start += kKeyBlock) {
    const size_t left = end - start;
    if (!apart || start + kKeyBlock <= common) {
      // The same rows for all of them. Later tokens see more: those before the first that sees any are passed over.
      size_t first = 0;
      while (first < task.tokens && length_of(task, first) <= start) first++;
      block.count = left < kKeyBlock ? left : kKeyBlock;
      key_rows(task, task.tokens - 1, start, block);
      ask_for(block.v, block.count, task.head_dim);
      if (left > kKeyBlock) {
        KeyBlock next;
        next.count = left - kKeyBlock < kKeyBlock ? left - kKeyBlock : kKeyBlock;
        key_rows(task, task.tokens - 1, start + kKeyBlock, next);
        ask_for(next.k, next.count, task.head_dim);
      }
      attend_block(task, block, start, first * task.group, rows, state);
      continue;
    }
    for (size_t t = 0; t < task.tokens; t++) {
      const size_t length = length_of(task, t);
      if (length <= start) continue;
      block.count = length - start < kKeyBlock ? length - start : kKeyBlock;
      key_rows(task, t, start, block);
      attend_block(task, block, start, t * task.group, (t + 1) * task.group, state);
    }
  }
  return partition * kPartition < end;
}

void join(const AttentionState& state, size_t row, const AttentionState& later, size_t later_row, size_t head_dim) {
  const float before = state.greatest[row];
  const float after = later.greatest[later_row];
  if (after == kUnseen) return;
  const float greatest = after > before ? after : before;
  const Floats kept = all(exp_one(before - greatest));
  const Floats added = all(exp_one(after - greatest));
  state.greatest[row] = greatest;
  float* const sums = state.sums + row * 16;
  store(sums, fused(load(later.sums + later_row * 16), added, load(sums) * kept));
  float* const values = state.values + row * head_dim;
  for (size_t d = 0; d < head_dim; d += 16) {
    store(values + d, fused(load(later.values + later_row * head_dim + d), added, load(values + d) * kept));
  }
}

void finish(const AttentionState& state, size_t row, size_t head_dim, float* out) {
  const Floats total = all(sum_of(load(state.sums + row * 16)));
  for (size_t d = 0; d < head_dim; d += 16) store(out + d, load(state.values + row * head_dim + d) / total);
}
