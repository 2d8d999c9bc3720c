// Stored matrices in tiles, and the table of embeddings.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "network.h"

namespace refrain {

namespace {

template <typename Element>
Aligned<Element> aligned(size_t count) {
  const size_t bytes = (count * sizeof(Element) + 63) / 64 * 64;
  void* const memory = std::aligned_alloc(64, bytes == 0 ? 64 : bytes);
  if (memory == nullptr) {
    // Nothing here throws: a machine that has no memory for the weights cannot serve them.
    std::fputs("refrain: there is no memory for the weights of the model\n", stderr);
    std::abort();
  }
  std::memset(memory, 0, bytes);
  return Aligned<Element>(static_cast<Element*>(memory));
}

int nibble_at(const uint8_t* q, size_t index) { return index % 2 == 0 ? q[index / 2] & 15 : q[index / 2] >> 4; }

// One row into its lane of a tile.
void pack_row(const StoredMatrix& stored, size_t row, uint8_t* tile, const PackedMatrix& packed) {
  const size_t lane = row % kTileRows;
  const size_t block = stored.block;
  const size_t blocks = stored.cols / block;
  for (size_t b = 0; b < blocks; b++) {
    uint8_t* const record = tile + b * packed.block_bytes();
    float* const scales = reinterpret_cast<float*>(record + stored.products.size() * block * kTileRows / 2);
    float offset = stored.offsets == nullptr ? 0.0f : stored.offsets[row * blocks + b];
    for (size_t p = 0; p < stored.products.size(); p++) {
      const StoredMatrix::Product& product = stored.products[p];
      const float scale = product.scales[row * blocks + b];
      scales[p * kTileRows + lane] = scale;
      offset -= static_cast<float>(product.zero_point) * scale;
      uint8_t* const lines = record + p * block * kTileRows / 2;
      for (size_t i = 0; i < block / 2; i++) {
        const size_t column = row * stored.cols + b * block + i;
        const int low = nibble_at(product.q, column);
        const int high = nibble_at(product.q, column + block / 2);
        lines[i / 4 * 64 + lane * 4 + i % 4] = static_cast<uint8_t>(low | high << 4);
      }
    }
    scales[stored.products.size() * kTileRows + lane] = offset;
  }
}

}  // namespace

void AlignedFree::operator()(void* memory) const { std::free(memory); }

Matrix::Matrix(const StoredMatrix& stored) {
  packed_.rows = stored.rows;
  packed_.cols = stored.cols;
  packed_.block = stored.block;
  packed_.products = stored.products.size();
  packed_.tile_bytes = stored.block == 0 ? stored.cols * kTileRows * sizeof(float)
                                         : stored.cols / stored.block * packed_.block_bytes();
  tiles_ = aligned<uint8_t>(packed_.tile_count() * packed_.tile_bytes);
  packed_.tiles = tiles_.get();
  for (size_t row = 0; row < stored.rows; row++) {
    uint8_t* const tile = tiles_.get() + row / kTileRows * packed_.tile_bytes;
    if (stored.block > 0) {
      pack_row(stored, row, tile, packed_);
      continue;
    }
    float* const lane = reinterpret_cast<float*>(tile) + row % kTileRows;
    for (size_t c = 0; c < stored.cols; c++) lane[c * kTileRows] = stored.dense[row * stored.cols + c];
  }
  if (stored.bias == nullptr) return;
  bias_ = aligned<float>(packed_.tile_count() * kTileRows);
  std::memcpy(bias_.get(), stored.bias, stored.rows * sizeof(float));
  packed_.bias = bias_.get();
}

Embedding::Embedding(const StoredMatrix& stored) : cols_(stored.cols), block_(stored.block) {
  if (block_ == 0) {
    dense_.assign(stored.dense, stored.dense + stored.rows * stored.cols);
    return;
  }
  const size_t blocks = stored.rows * stored.cols / block_;
  for (const StoredMatrix::Product& product : stored.products) {
    parts_.push_back({std::vector<uint8_t>(product.q, product.q + stored.rows * stored.cols / 2),
                      std::vector<float>(product.scales, product.scales + blocks), product.zero_point});
  }
  if (stored.offsets != nullptr) offsets_.assign(stored.offsets, stored.offsets + blocks);
}

void Embedding::look_up(size_t id, float* out) const {
  if (block_ == 0) {
    std::memcpy(out, dense_.data() + id * cols_, cols_ * sizeof(float));
    return;
  }
  for (size_t c = 0; c < cols_; c++) {
    const size_t at = id * cols_ + c;
    float sum = 0;
    for (const Part& part : parts_) {
      sum += part.scales[at / block_] * static_cast<float>(nibble_at(part.q.data(), at) - part.zero_point);
    }
    out[c] = offsets_.empty() ? sum : sum + offsets_[at / block_];
  }
}

}  // namespace refrain
