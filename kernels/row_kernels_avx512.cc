// The form for processors with AVX-512 and VNNI (Intel from Ice Lake on, AMD from Zen 4 on): four products of bytes in
// each lane at once. Everything between push and pop is compiled for them; nothing of it runs anywhere else.
#include "row_kernels_forms.h"

#if REFRAIN_X86

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c,fma")
#endif

namespace refrain {
namespace {

using Floats = float __attribute__((vector_size(64)));
using Ints = int32_t __attribute__((vector_size(64)));

inline Floats all(float value) { return (Floats)_mm512_set1_ps(value); }

inline Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }

inline Ints four_everywhere(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, sizeof four);
  return (Ints)_mm512_set1_epi32(four);
}

inline Ints dot4(Ints sum, Ints w, Ints x) { return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x); }

inline Floats halved(Floats value) {
  return (Floats)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
}

inline void store_bytes(int8_t* to, Ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8((__m512i)v));
}

inline float greatest_of(Floats v) { return _mm512_reduce_max_ps((__m512)v); }

// Pairs, then fours within each quarter of a vector; then the quarters change places.
inline void transpose16(const float* const* rows, size_t stride, float* out) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(rows[i]);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  for (int i = 0; i < 4; i++) {
    const __m512 low = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
    const __m512 high = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
    const __m512 later_low = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
    const __m512 later_high = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
    _mm512_storeu_ps(out + i * stride, _mm512_shuffle_f32x4(low, later_low, 0x88));
    _mm512_storeu_ps(out + (4 + i) * stride, _mm512_shuffle_f32x4(high, later_high, 0x88));
    _mm512_storeu_ps(out + (8 + i) * stride, _mm512_shuffle_f32x4(low, later_low, 0xdd));
    _mm512_storeu_ps(out + (12 + i) * stride, _mm512_shuffle_f32x4(high, later_high, 0xdd));
  }
}

#include "row_kernels_body.h"

}  // namespace

const RowKernels kAvx512Rows{"avx512vnni", norm, gate, round_to_half, quantize, product, attend, join, finish};

}  // namespace refrain

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
