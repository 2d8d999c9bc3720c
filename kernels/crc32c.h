// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, RFC 3720 appendix B.4): the checksum of a block record.
// Invariant: crc32c(b, crc32c(a)) is crc32c(a followed by b), for every form, length and alignment. No Node type here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace refrain {

struct Checksum {
  const char* name;
  /// Goes on from `crc`, an earlier result or 0. `data` may be unaligned.
  uint32_t (*crc32c)(uint32_t crc, const uint8_t* data, size_t bytes);
};

/// The forms that this processor runs, fastest first; the last one is "scalar". Ends with a null pointer.
const Checksum* const* checksums();

}  // namespace refrain
