// The forward pass of a model of the llama family over slots: tokens in, their K and V into the slots' rows, logits out.
// Invariant: a token's results depend on the tokens that it sees and on their order, and on nothing else: not on which
// other tokens run with it, nor on the slots' capacity. So what decodes equals what is prefilled, to the bit. No Node
// type here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "row_kernels.h"
#include "thread_pool.h"

namespace refrain {

struct NetworkShape {
  size_t layers = 0;
  size_t heads = 0;
  size_t kv_heads = 0;
  size_t head_dim = 0;
  size_t dim = 0;
  size_t hidden_dim = 0;
  size_t vocab_size = 0;
  size_t positions = 0;
  float epsilon = 0;
  /// Dimensions of a head that turn with the position.
  size_t rope_dim = 0;
  /// Pairs are (0, 1), (2, 3), ...; else (0, rope_dim / 2), (1, rope_dim / 2 + 1), ...
  bool interleaved = false;
  /// New K and V are rounded to what fp16 can hold, before anything attends to them.
  bool round_kv = false;
};

/// A stored matrix as it comes: one product has q [rows, cols / 2] (low nibble first) and scales [rows, cols / block].
struct StoredMatrix {
  size_t rows = 0;
  size_t cols = 0;
  /// 16 or 32; 0: `dense` [rows, cols].
  size_t block = 0;
  struct Product {
    const uint8_t* q;
    const float* scales;
    int zero_point;
  };
  std::vector<Product> products;
  /// [rows, cols / block]; null: none.
  const float* offsets = nullptr;
  /// [rows]; null: none.
  const float* bias = nullptr;
  const float* dense = nullptr;
};

/// Memory on the border of a vector.
struct AlignedFree {
  void operator()(void* memory) const;
};
template <typename Element>
using Aligned = std::unique_ptr<Element[], AlignedFree>;

/// A matrix that is ours, in tiles.
class Matrix {
 public:
  explicit Matrix(const StoredMatrix& stored);
  const PackedMatrix& packed() const { return packed_; }

 private:
  PackedMatrix packed_;
  Aligned<uint8_t> tiles_;
  Aligned<float> bias_;
};

/// Matrices that multiply the same input; each gives a run of the results.
using Projection = std::vector<Matrix>;

/// The rows that tokens are looked up in: exact, in fp32.
class Embedding {
 public:
  explicit Embedding(const StoredMatrix& stored);
  void look_up(size_t id, float* out) const;

 private:
  size_t cols_;
  size_t block_;
  struct Part {
    std::vector<uint8_t> q;
    std::vector<float> scales;
    int zero_point;
  };
  std::vector<Part> parts_;
  std::vector<float> offsets_;
  std::vector<float> dense_;
};

struct LayerWeights {
  std::vector<float> attention_norm;
  Projection qkv;
  /// Norms of q's and k's heads [head_dim]; empty: none.
  std::vector<float> query_norm;
  std::vector<float> key_norm;
  Projection attention_output;
  std::vector<float> feed_forward_norm;
  Projection gate_up;
  Projection down;
};

struct NetworkWeights {
  std::unique_ptr<Embedding> embedding;
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;
  /// One matrix.
  Projection head;
  /// [positions, rope_dim / 2]
  std::vector<float> cos;
  std::vector<float> sin;
};

/// Where a sequence's K and V stand: a buffer of [kv_heads, capacity, head_dim] for each layer.
struct SlotView {
  std::vector<float*> k;
  std::vector<float*> v;
  size_t capacity;
};

struct Token {
  int32_t id;
  int32_t slot;
  /// It sees the slot's rows [0, sees) and then the rows extra[0, extras), of which its own is the last of all.
  int32_t sees;
  int32_t extra;
  int32_t extras;
  /// Where its K and V go.
  int32_t row;
  bool wants_logits;

  int32_t position() const { return sees + extras - 1; }
};

class Network {
 public:
  Network(const NetworkShape& shape, NetworkWeights weights, const RowKernels& kernels, size_t threads);

  const NetworkShape& shape() const { return shape_; }

  /**
   * Tokens of one slot stand together, those that others see before them. `extra` is what tokens' `extra` points into.
   * Logits [vocab_size] of those that want them go to `logits`, in order. REQUIRES: rows and ids are in range.
   */
  void forward(const std::vector<Token>& tokens, const std::vector<SlotView>& slots, const int32_t* extra,
               float* logits);

 private:
  struct Buffers;
  struct Tile;

  void attention_layer(const LayerWeights& layer, size_t l);
  void feed_forward_layer(const LayerWeights& layer);
  void place(const LayerWeights& layer, size_t l, size_t row);
  void rotate(float* head, size_t position) const;
  void attend(size_t l);
  void attend_apart(size_t l);
  void plan_tiles();
  void read(const float* values, size_t cols, const Projection& into, size_t count);
  void project(const Projection& matrices, size_t count, float* out, size_t stride, bool add);
  void logits_of(const std::vector<Token>& tokens, float* logits);
  AttentionTask task_of(const Tile& tile, size_t kv_head, size_t l) const;
  template <typename Work>
  void each_row(size_t count, const Work& work);

  const NetworkShape shape_;
  const NetworkWeights weights_;
  const RowKernels& kernels_;
  ThreadPool pool_;
  std::unique_ptr<Buffers> buffers_;

 public:
  ~Network();
};

}  // namespace refrain
