#include "fingerprint.h"

#include "comm.h"
#include "op.h"
#include "util.h"

namespace mccl {

WireHeader header_of(const Op* op) {
  WireHeader header{};
  header.magic = kWireMagic;
  header.collective = static_cast<uint8_t>(op->collective);
  header.dtype = static_cast<uint8_t>(op->dtype);
  header.redop = static_cast<uint8_t>(op->redop);
  header.wire_dtype = static_cast<uint8_t>(op->wire_dtype);
  header.root = op->root;
  header.epoch = op->comm->config.epoch;
  header.sequence = op->sequence;
  header.count = op->count;
  return header;
}

std::string describe(const WireHeader& header) {
  std::string text = std::string(collective_name(header.collective)) + "(" +
                     dtype_name(header.dtype);
  if (header.redop != MCCL_NO_REDOP) text += std::string(", ") + redop_name(header.redop);
  text += ", " + std::to_string(header.count) + " elements";
  if (header.root >= 0) text += ", root " + std::to_string(header.root);
  return text + ") as collective #" + std::to_string(header.sequence);
}

}  // namespace mccl
