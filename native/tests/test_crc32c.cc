// CRC-32C: the vectors of RFC 3720 appendix B.4, and table and instruction against a bitwise
// definition at every length around the block sizes, alignment and split.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "crc32c.h"
#include "reduce.h"

namespace {

uint32_t bitwise(uint32_t crc, const uint8_t* p, size_t n) {
  crc = ~crc;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

void vectors(mccl::Crc32cFn crc, const char* name) {
  uint8_t bytes[32];
  std::memset(bytes, 0, 32);
  CHECK_MSG(crc(0, bytes, 32) == 0x8a9136aau, "%s: 32 zeros", name);
  std::memset(bytes, 0xff, 32);
  CHECK_MSG(crc(0, bytes, 32) == 0x62a8ab43u, "%s: 32 ones", name);
  for (int i = 0; i < 32; i++) bytes[i] = static_cast<uint8_t>(i);
  CHECK_MSG(crc(0, bytes, 32) == 0x46dd794eu, "%s: ascending", name);
  for (int i = 0; i < 32; i++) bytes[i] = static_cast<uint8_t>(31 - i);
  CHECK_MSG(crc(0, bytes, 32) == 0x113fdb5cu, "%s: descending", name);
  static const uint8_t read_pdu[48] = {
      0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
      0,    0,    0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
  CHECK_MSG(crc(0, read_pdu, 48) == 0xd9963a56u, "%s: iSCSI read command", name);
  CHECK_MSG(crc(0, "123456789", 9) == 0xe3069283u, "%s: check value", name);
  CHECK_MSG(crc(7, bytes, 0) == 7, "%s: nothing", name);
}

void lengths(mccl::Crc32cFn crc, const char* name) {
  std::vector<uint8_t> data(3 * 8192 * 2 + 3 * 256 * 2 + 64);
  std::mt19937 random(5);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  std::vector<size_t> sizes;
  for (size_t n = 0; n < 40; n++) sizes.push_back(n);
  for (size_t edge : {3 * 256, 6 * 256, 3 * 8192, 3 * 8192 + 3 * 256, 6 * 8192}) {
    for (size_t n = edge - 9; n <= edge + 9; n++) sizes.push_back(n);
  }
  for (size_t n : sizes) {
    const uint8_t* p = data.data() + n % 9;
    const uint32_t want = bitwise(0x1234567u, p, n);
    CHECK_MSG(crc(0x1234567u, p, n) == want, "%s: %zu bytes", name, n);
    const size_t first = n / 3;
    CHECK_MSG(crc(crc(0x1234567u, p, first), p + first, n - first) == want,
              "%s: %zu bytes in two parts", name, n);
  }
}

}  // namespace

int main() {
  vectors(mccl::crc32c_table, "table");
  lengths(mccl::crc32c_table, "table");
  if (mccl::crc32c_hardware() != nullptr) {
    vectors(mccl::crc32c_hardware(), "hardware");
    lengths(mccl::crc32c_hardware(), "hardware");
  } else {
    std::printf("no CRC instruction on this processor: table only\n");
  }
  vectors(mccl::crc32c, "chosen");
  return check::result();
}
