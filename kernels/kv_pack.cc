// The three forms of the fp32 <-> fp16 conversion and the walk over rows. The vector forms do whole vectors and leave
// the rest of a row to the scalar one, which is the fallback's arithmetic in C++.
#include "kv_pack.h"

#include <cstring>

#include "cpu.h"

#if REFRAIN_X86
#include <immintrin.h>
#endif

namespace refrain {

namespace {

inline uint16_t pack_one(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // From 2^-14 on the result is normal: rebias the exponent, round at bit 13; a carry runs into the exponent as it should.
  if (magnitude - 0x38800000u < 0x47800000u - 0x38800000u) {
    const uint32_t rebiased = magnitude - 0x38000000u;
    return static_cast<uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  // Below half of the least subnormal (2^-25, the tie included) all is zero; the shift below would be too wide.
  if (magnitude <= 0x33000000u) return static_cast<uint16_t>(sign);
  const uint32_t shift = 126u - (magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t half = 1u << (shift - 1);
  return static_cast<uint16_t>(sign | ((mantissa + half - 1u + ((mantissa >> shift) & 1u)) >> shift));
}

inline float unpack_one(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  uint32_t bits;
  if (magnitude >= 0x7c00u) {
    const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    bits = sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13);
  } else if (magnitude >= 0x400u) {
    bits = sign | ((magnitude << 13) + 0x38000000u);
  } else {
    // A subnormal is magnitude * 2^-24, exact in fp32.
    const float exact = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &exact, sizeof bits);
    bits |= sign;
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void pack_scalar(const float* source, size_t count, uint16_t* target) {
  for (size_t i = 0; i < count; i++) target[i] = pack_one(source[i]);
}

void unpack_scalar(const uint16_t* source, size_t count, float* target) {
  for (size_t i = 0; i < count; i++) target[i] = unpack_one(source[i]);
}

constexpr Converter kScalar{"scalar", pack_scalar, unpack_scalar};

#if REFRAIN_X86

__attribute__((target("avx,f16c"))) void pack_f16c(const float* source, size_t count, uint16_t* target) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), halves);
  }
  pack_scalar(source + i, count - i, target + i);
}

__attribute__((target("avx,f16c"))) void unpack_f16c(const uint16_t* source, size_t count, float* target) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm256_storeu_ps(target + i, _mm256_cvtph_ps(halves));
  }
  unpack_scalar(source + i, count - i, target + i);
}

__attribute__((target("avx512f"))) void pack_avx512f(const float* source, size_t count, uint16_t* target) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm512_cvtps_ph(_mm512_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i), halves);
  }
  pack_scalar(source + i, count - i, target + i);
}

__attribute__((target("avx512f"))) void unpack_avx512f(const uint16_t* source, size_t count, float* target) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    _mm512_storeu_ps(target + i, _mm512_cvtph_ps(halves));
  }
  unpack_scalar(source + i, count - i, target + i);
}

constexpr Converter kF16c{"f16c", pack_f16c, unpack_f16c};
constexpr Converter kAvx512f{"avx512f", pack_avx512f, unpack_avx512f};

#endif

struct Runnable {
  const Converter* list[4] = {};

  Runnable() {
    size_t count = 0;
#if REFRAIN_X86
    if (cpu().avx512f) list[count++] = &kAvx512f;
    if (cpu().f16c) list[count++] = &kF16c;
#endif
    list[count] = &kScalar;
  }
};

}  // namespace

const Converter* const* converters() {
  static const Runnable runnable;
  return runnable.list;
}

void pack_rows(const Converter& with, const float* source, const Rows& shape, uint16_t* target) {
  if (shape.stride == shape.row_elements) return with.pack(source, shape.rows * shape.row_elements, target);
  for (size_t row = 0; row < shape.rows; row++) {
    with.pack(source + row * shape.stride, shape.row_elements, target + row * shape.row_elements);
  }
}

void unpack_rows(const Converter& with, const uint16_t* source, const Rows& shape, float* target) {
  if (shape.stride == shape.row_elements) return with.unpack(source, shape.rows * shape.row_elements, target);
  for (size_t row = 0; row < shape.rows; row++) {
    with.unpack(source + row * shape.row_elements, shape.row_elements, target + row * shape.stride);
  }
}

}  // namespace refrain
