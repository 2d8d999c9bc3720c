// What a forward pass is made of, for rows: norms, products with stored matrices, attention over the rows of a slot.
// Invariant: what comes out for a row depends on that row and on what it sees, never on how many rows run with it or how
// a prompt was cut; and every form gives the same bits. Sums are taken in one order, fixed by absolute positions; products
// of quantized weights are exact integers within a block. No Node type here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace refrain {

/// Rows of a matrix that are computed together: the lanes of a vector.
constexpr size_t kTileRows = 16;
/// Rows of activations that stand together, block by block.
constexpr size_t kPanelRows = 8;
/// Keys that attention takes at a time, and after how many its softmax starts anew and is joined to what came before.
constexpr size_t kKeyBlock = 64;
constexpr size_t kPartition = 512;
/// Query rows (tokens times the heads that share K and V) that one call of `attend` takes at most.
constexpr size_t kMostQueryRows = 64;
constexpr size_t kMostHeadDim = 256;

/**
 * A matrix [rows, cols] in tiles of 16 rows. `block` is 16 or 32: weights that share a scale; 0: fp32.
 *
 *   quantized tile   for each block of columns: [product 0's 4-bit values][product 1's]...[scales of each][offsets]
 *   4-bit values     lines of 64 bytes; byte 4 r + i of line j is row r: low nibble column 4 j + i, high one block / 2 more
 *   weight           sum over products of scale * q, plus offset (zero points are in the offsets)
 *   fp32 tile        [column][16 rows]
 */
struct PackedMatrix {
  size_t rows = 0;
  size_t cols = 0;
  size_t block = 0;
  size_t products = 0;
  const uint8_t* tiles = nullptr;
  size_t tile_bytes = 0;
  /// [tiles * 16]; null: none.
  const float* bias = nullptr;

  size_t tile_count() const { return (rows + kTileRows - 1) / kTileRows; }
  size_t block_bytes() const { return products * (block * kTileRows / 2 + kTileRows * 4) + kTileRows * 4; }
};

/**
 * Rows of activations as 15-bit integers, one scale for each block: x = scale * (128 * high + low), |high| <= 127,
 * -64 <= low < 64. The error is 2^-15 of a block's greatest value, a sixteenth of what rounding K and V to fp16 costs.
 */
struct QuantizedRows {
  /// Panels of 8 rows, each [cols / block][row of 8][high: block][low: block].
  int8_t* values = nullptr;
  /// [cols / block][row of 8] of each panel: the scale, and the sum of the block's x.
  float* scale = nullptr;
  float* sum = nullptr;
};

struct Activations {
  const float* values = nullptr;
  size_t cols = 0;
  size_t count = 0;
  QuantizedRows by16;
  QuantizedRows by32;
};

/// A softmax on its way: for each query row the greatest score, the lanes' sums and the weighted values.
struct AttentionState {
  float* greatest;
  /// [rows, 16]
  float* sums;
  /// [rows, head dim]
  float* values;
};

/// Neighbouring tokens of one slot and the heads that share one K and V.
struct AttentionTask {
  size_t tokens;
  /// Heads that share K and V; at most kMostQueryRows rows in all.
  size_t group;
  size_t head_dim;
  /// Row (t, g) is at query + t * query_stride + g * head_dim; scaled already.
  const float* query;
  size_t query_stride;
  /// The slot's rows of this K/V head: [capacity, head_dim].
  const float* k;
  const float* v;
  /// For each token: it sees rows [0, sees) and then `extras` rows, which stand in `rows` from `extra` on. Where none of the
  /// tokens has such rows, a later one sees no less than one before it.
  const int32_t* sees;
  const int32_t* extra;
  const int32_t* extras;
  const int32_t* rows;
};

struct RowKernels {
  const char* name;
  /// out = x / rms(x) * weight.
  void (*norm)(const float* x, const float* weight, float epsilon, size_t count, float* out);
  /// out = silu(gate) * up.
  void (*gate)(const float* gate, const float* up, size_t count, float* out);
  /// out = x rounded to what fp16 can hold.
  void (*round_to_half)(const float* x, size_t count, float* out);
  /// One row, which becomes row `row` of `out`. REQUIRES: cols is a multiple of block.
  void (*quantize)(const float* x, size_t cols, size_t block, size_t row, const QuantizedRows& out);
  /// out[row * stride + r] = x w^T + bias for the matrix rows of tiles [first, last); `add`: is added to what is there.
  void (*product)(const PackedMatrix& matrix, const Activations& x, size_t first, size_t last, float* out,
                  size_t stride, bool add);
  /// The keys of one partition, from scratch. False: none of the tokens sees any of it.
  bool (*attend)(const AttentionTask& task, size_t partition, const AttentionState& state);
  /// Joins a later partition's state of one row to the row's state so far.
  void (*join)(const AttentionState& state, size_t row, const AttentionState& later, size_t later_row, size_t head_dim);
  /// out = values / sum of one row.
  void (*finish)(const AttentionState& state, size_t row, size_t head_dim, float* out);
};

/// The forms that this processor runs, fastest first; the last one is "scalar". Ends with a null pointer.
const RowKernels* const* row_kernels();

}  // namespace refrain
