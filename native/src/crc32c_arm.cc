// CRC-32C by ARMv8's crc32c instructions.
#include <arm_acle.h>

#include "crc32c.h"

#define CRC_BYTE(crc, byte) __crc32cb(crc, byte)
#define CRC_WORD(crc, word) __crc32cd(crc, word)

namespace mccl {
namespace {
#include "crc32c_interleaved.inc"
}  // namespace

uint32_t crc32c_arm(uint32_t crc, const void* data, size_t n) { return run(crc, data, n); }

}  // namespace mccl
