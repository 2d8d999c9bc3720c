// What the processor at hand can run, asked once. No compiler flag turns these instructions on for the whole build:
// each function that uses them carries a target attribute, so one build runs on any x86-64 and picks at run time.
// Invariant: an instruction set counts only when the operating system keeps its registers too (XCR0).
#pragma once

#if defined(__x86_64__) || defined(__i386__)
#define REFRAIN_X86 1
#else
#define REFRAIN_X86 0
#endif

namespace refrain {

struct Cpu {
  bool f16c = false;
  bool avx512f = false;
  /// With the byte, word, doubleword and short-vector sets, and VNNI.
  bool avx512vnni = false;
  bool crc32 = false;
};

const Cpu& cpu();

}  // namespace refrain
