// CRC-32C by table and by instruction. All take and give the finished (inverted) value, as
// crc32c in reduce.h does.
#ifndef MCCL_SRC_CRC32C_H
#define MCCL_SRC_CRC32C_H

#include <cstddef>
#include <cstdint>

namespace mccl {

using Crc32cFn = uint32_t (*)(uint32_t crc, const void* data, size_t n);

uint32_t crc32c_table(uint32_t crc, const void* data, size_t n);
#if defined(__x86_64__)
uint32_t crc32c_sse42(uint32_t crc, const void* data, size_t n);
#elif defined(__aarch64__)
uint32_t crc32c_arm(uint32_t crc, const void* data, size_t n);
#endif

// The instruction's function, or nullptr where this processor has none.
Crc32cFn crc32c_hardware();

}  // namespace mccl

#endif  // MCCL_SRC_CRC32C_H
