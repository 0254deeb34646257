// CRC-32C by table, eight bytes a step, and the choice of implementation.
#include "crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "reduce.h"

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

namespace mccl {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // RFC 3720 appendix B.4, reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b] is the register after byte b and k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; b++) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; k++) {
    for (uint32_t b = 0; b < 256; b++) {
      const uint32_t crc = tables[k - 1][b];
      tables[k][b] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32c_table(uint32_t crc, const void* data, size_t n) {
  const auto* p = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; k++) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; n != 0; n--, p++) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xff];
  return ~crc;
}

Crc32cFn crc32c_hardware() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2")) return crc32c_sse42;
#elif defined(__aarch64__) && defined(__APPLE__)
  return crc32c_arm;
#elif defined(__aarch64__) && defined(__linux__)
  if ((getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) return crc32c_arm;
#endif
  return nullptr;
}

uint32_t crc32c(uint32_t crc, const void* data, size_t n) {
  static const Crc32cFn best = crc32c_hardware() != nullptr ? crc32c_hardware() : crc32c_table;
  return best(crc, data, n);
}

}  // namespace mccl
