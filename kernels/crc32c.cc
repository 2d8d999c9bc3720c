// Two forms of CRC-32C. The scalar one folds eight bytes a turn through eight tables. The SSE4.2 one feeds three streams
// to the crc32 instruction at once, since each waits three cycles for its own result but one can start every cycle:
//
//   [ stream 0: N bytes ][ stream 1: N bytes ][ stream 2: N bytes ]  ->  crc = (crc0 over 2N zeros) ^ (crc1 over N zeros) ^ crc2
//
// CRCs are linear, so "over N zeros" is a 32x32 bit matrix; it is applied through four tables of 256 entries.
#include "crc32c.h"

#include <cstring>

#include "cpu.h"

#if REFRAIN_X86 && defined(__x86_64__)
#include <nmmintrin.h>
#define REFRAIN_CRC_INSTRUCTION 1
#else
#define REFRAIN_CRC_INSTRUCTION 0
#endif

namespace refrain {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;

struct ByteTables {
  uint32_t entry[8][256];

  ByteTables() {
    for (uint32_t byte = 0; byte < 256; byte++) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (kPolynomial & (0u - (crc & 1u)));
      entry[0][byte] = crc;
    }
    for (int table = 1; table < 8; table++) {
      for (uint32_t byte = 0; byte < 256; byte++) {
        const uint32_t before = entry[table - 1][byte];
        entry[table][byte] = (before >> 8) ^ entry[0][before & 0xffu];
      }
    }
  }
};

const ByteTables& byte_tables() {
  static const ByteTables tables;
  return tables;
}

// Bytes are put together by hand so that the order of bytes in memory is the same on every machine.
inline uint32_t little_endian(const uint8_t* data) {
  return static_cast<uint32_t>(data[0]) | static_cast<uint32_t>(data[1]) << 8 | static_cast<uint32_t>(data[2]) << 16 |
         static_cast<uint32_t>(data[3]) << 24;
}

uint32_t crc32c_scalar(uint32_t crc, const uint8_t* data, size_t bytes) {
  const auto& table = byte_tables().entry;
  uint32_t state = ~crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    const uint32_t low = state ^ little_endian(data);
    const uint32_t high = little_endian(data + 4);
    state = table[7][low & 0xff] ^ table[6][(low >> 8) & 0xff] ^ table[5][(low >> 16) & 0xff] ^ table[4][low >> 24] ^
            table[3][high & 0xff] ^ table[2][(high >> 8) & 0xff] ^ table[1][(high >> 16) & 0xff] ^ table[0][high >> 24];
  }
  for (; bytes > 0; bytes--, data++) state = (state >> 8) ^ table[0][(state ^ *data) & 0xffu];
  return ~state;
}

constexpr Checksum kScalar{"scalar", crc32c_scalar};

#if REFRAIN_CRC_INSTRUCTION

// What `2^log2_bytes` zero bytes do to a state.
struct ZeroRun {
  uint32_t entry[4][256];

  explicit ZeroRun(int log2_bytes) {
    uint32_t column[32];  // image of each single bit
    for (int bit = 0; bit < 32; bit++) {
      const uint32_t state = 1u << bit;
      column[bit] = (state >> 8) ^ byte_tables().entry[0][state & 0xffu];
    }
    for (int doubling = 0; doubling < log2_bytes; doubling++) {
      uint32_t twice[32];
      for (int bit = 0; bit < 32; bit++) twice[bit] = image(column, column[bit]);
      std::memcpy(column, twice, sizeof column);
    }
    for (int byte = 0; byte < 4; byte++) {
      for (uint32_t value = 0; value < 256; value++) entry[byte][value] = image(column, value << (8 * byte));
    }
  }

  uint32_t over(uint32_t state) const {
    return entry[0][state & 0xff] ^ entry[1][(state >> 8) & 0xff] ^ entry[2][(state >> 16) & 0xff] ^
           entry[3][state >> 24];
  }

 private:
  static uint32_t image(const uint32_t* column, uint32_t state) {
    uint32_t sum = 0;
    for (int bit = 0; bit < 32; bit++) {
      if ((state >> bit) & 1u) sum ^= column[bit];
    }
    return sum;
  }
};

inline uint64_t word(const uint8_t* data) {
  uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) const uint8_t* three_streams(uint32_t* state, const uint8_t* data, size_t stream,
                                                                const ZeroRun& zeros) {
  uint64_t first = *state;
  uint64_t second = 0;
  uint64_t third = 0;
  for (size_t i = 0; i < stream; i += 8) {
    first = _mm_crc32_u64(first, word(data + i));
    second = _mm_crc32_u64(second, word(data + stream + i));
    third = _mm_crc32_u64(third, word(data + 2 * stream + i));
  }
  const uint32_t joined = zeros.over(static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
  *state = zeros.over(joined) ^ static_cast<uint32_t>(third);
  return data + 3 * stream;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(uint32_t crc, const uint8_t* data, size_t bytes) {
  // Long streams hide the joining, short ones keep a record's rest fast.
  constexpr int kLongLog2 = 12, kShortLog2 = 8;
  static const ZeroRun long_zeros(kLongLog2);
  static const ZeroRun short_zeros(kShortLog2);
  uint32_t state = ~crc;
  const uint8_t* const end = data + bytes;
  while (end - data >= 3 << kLongLog2) data = three_streams(&state, data, size_t{1} << kLongLog2, long_zeros);
  while (end - data >= 3 << kShortLog2) data = three_streams(&state, data, size_t{1} << kShortLog2, short_zeros);
  for (; end - data >= 8; data += 8) state = static_cast<uint32_t>(_mm_crc32_u64(state, word(data)));
  for (; data < end; data++) state = _mm_crc32_u8(state, *data);
  return ~state;
}

constexpr Checksum kSse42{"sse4.2", crc32c_sse42};

#endif

struct Runnable {
  const Checksum* list[3] = {};

  Runnable() {
    size_t count = 0;
#if REFRAIN_CRC_INSTRUCTION
    if (cpu().crc32) list[count++] = &kSse42;
#endif
    list[count] = &kScalar;
  }
};

}  // namespace

const Checksum* const* checksums() {
  static const Runnable runnable;
  return runnable.list;
}

}  // namespace refrain
