// What a rank says it is doing: before the first byte of a collective on each connection, and
// with every heartbeat, so that ranks in different collectives find out even where their plans
// share no connection.
#ifndef MCCL_SRC_FINGERPRINT_H
#define MCCL_SRC_FINGERPRINT_H

#include <cstdint>
#include <string>

namespace mccl {

struct Op;

// All little-endian.
struct WireHeader {
  uint32_t magic;
  uint8_t collective;
  uint8_t dtype;
  uint8_t redop;
  uint8_t wire_dtype;
  int32_t root;
  uint32_t reserved;
  uint64_t epoch;
  uint64_t sequence;
  uint64_t count;
};
static_assert(sizeof(WireHeader) == 40);
inline constexpr uint32_t kWireMagic = 0x4d434331;  // "MCC1"

WireHeader header_of(const Op* op);
// E.g. "all_reduce(float32, SUM, 1000 elements) as collective #12".
std::string describe(const WireHeader& header);

}  // namespace mccl

#endif  // MCCL_SRC_FINGERPRINT_H
