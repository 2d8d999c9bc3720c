// The form for any processor: what the others are held to, and far too slow to serve with.
#include "row_kernels_forms.h"

namespace refrain {
namespace {

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));

inline Floats all(float value) {
  Floats lanes;
  for (int i = 0; i < 16; i++) lanes[i] = value;
  return lanes;
}

inline Floats fused(Floats a, Floats b, Floats c) {
  Floats sum;
  for (int i = 0; i < 16; i++) sum[i] = std::fma(a[i], b[i], c[i]);
  return sum;
}

inline Ints four_everywhere(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return Ints{} + four;
}

inline Ints dot4(Ints sum, Ints w, Ints x) {
  uint8_t weights[64];
  int8_t values[64];
  __builtin_memcpy(weights, &w, sizeof weights);
  __builtin_memcpy(values, &x, sizeof values);
  for (int i = 0; i < 64; i++) sum[i / 4] += weights[i] * values[i];
  return sum;
}

inline Floats halved(Floats value) {
  float lanes[16];
  uint16_t halves[16];
  __builtin_memcpy(lanes, &value, sizeof lanes);
  const Converter* const* form = converters();
  while (form[1] != nullptr) form++;
  (*form)->pack(lanes, 16, halves);
  (*form)->unpack(halves, 16, lanes);
  __builtin_memcpy(&value, lanes, sizeof lanes);
  return value;
}

inline void store_bytes(int8_t* to, Ints v) {
  for (int i = 0; i < 16; i++) to[i] = static_cast<int8_t>(v[i]);
}

inline float greatest_of(Floats v) {
  float greatest = v[0];
  for (int i = 1; i < 16; i++) greatest = v[i] > greatest ? v[i] : greatest;
  return greatest;
}

inline void transpose16(const float* const* rows, size_t stride, float* out) {
  for (int i = 0; i < 16; i++) {
    for (int lane = 0; lane < 16; lane++) out[i * stride + lane] = rows[lane][i];
  }
}

#include "row_kernels_body.h"

}  // namespace

const RowKernels kScalarRows{"scalar", norm, gate, round_to_half, quantize, product, attend, join, finish};

const RowKernels* const* row_kernels() {
#if REFRAIN_X86
  static const RowKernels* const kWithVectors[] = {&kAvx512Rows, &kScalarRows, nullptr};
  if (cpu().avx512vnni) return kWithVectors;
#endif
  static const RowKernels* const kPlain[] = {&kScalarRows, nullptr};
  return kPlain;
}

}  // namespace refrain
