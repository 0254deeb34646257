// CRC-32C by SSE4.2's crc32 instruction.
#include <nmmintrin.h>

#include "crc32c.h"

#define CRC_BYTE(crc, byte) _mm_crc32_u8(crc, byte)
#define CRC_WORD(crc, word) static_cast<uint32_t>(_mm_crc32_u64(crc, word))

namespace mccl {
namespace {
#include "crc32c_interleaved.inc"
}  // namespace

uint32_t crc32c_sse42(uint32_t crc, const void* data, size_t n) { return run(crc, data, n); }

}  // namespace mccl
