// KV rows between fp32 (what the engine computes in) and fp16 (what the tiers keep). Invariant: every form gives the
// same bits as src/native/fallback.ts: nearest, ties to even; subnormals kept; overflow is infinity; a NaN keeps its sign
// and the upper ten bits of its payload and comes out quiet. No Node type here.
//
//   fp32 side   ..[row 0: row_elements].......[row 1: row_elements].......     rows `stride` elements apart
//   fp16 side     [row 0][row 1]...                                            rows one after another
#pragma once

#include <cstddef>
#include <cstdint>

namespace refrain {

/// One way to convert `count` consecutive values. REQUIRES: source and target do not overlap.
struct Converter {
  const char* name;
  void (*pack)(const float* source, size_t count, uint16_t* target);
  void (*unpack)(const uint16_t* source, size_t count, float* target);
};

/// The forms that this processor runs, fastest first; the last one is "scalar". Ends with a null pointer.
const Converter* const* converters();

struct Rows {
  size_t rows;
  size_t row_elements;
  /// Elements from the start of one fp32 row to the next.
  size_t stride;
};

/// `source` and `target` point at row 0. REQUIRES: the caller has checked that every row lies inside both arrays.
void pack_rows(const Converter& with, const float* source, const Rows& shape, uint16_t* target);
void unpack_rows(const Converter& with, const uint16_t* source, const Rows& shape, float* target);

}  // namespace refrain
