// Reads CPUID and XCR0. A machine that is no x86 has none of these sets and takes the scalar forms.
#include "cpu.h"

#if REFRAIN_X86
#include <cpuid.h>
#endif

namespace refrain {

namespace {

#if REFRAIN_X86
unsigned enabled_state() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Cpu detect() {
  constexpr unsigned kSse42 = 1u << 20, kOsxsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;  // leaf 1, ECX
  constexpr unsigned kAvx512f = 1u << 16, kAvx512Rest = 1u << 17 | 1u << 30 | 1u << 31;          // leaf 7, EBX
  constexpr unsigned kVnni = 1u << 11;                                                           // leaf 7, ECX
  constexpr unsigned kYmmState = 0x06, kZmmState = 0xe6;                                         // XCR0
  Cpu found;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  found.crc32 = (c & kSse42) != 0;
  if (!(c & kOsxsave)) return found;
  const unsigned state = enabled_state();
  found.f16c = (state & kYmmState) == kYmmState && (c & kAvx) && (c & kF16c);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    found.avx512f = found.f16c && (state & kZmmState) == kZmmState && (b & kAvx512f);
    found.avx512vnni = found.avx512f && (b & kAvx512Rest) == kAvx512Rest && (c & kVnni);
  }
  return found;
}
#else
Cpu detect() { return Cpu{}; }
#endif

}  // namespace

const Cpu& cpu() {
  static const Cpu found = detect();
  return found;
}

}  // namespace refrain
