// Framed streams: frame headers and payloads of up to four rails, cut anywhere, with and without
// checksums. What is delivered is at most what was sent, inside the memory given for it.

#include <memory>

#include "harness.h"
#include "reduce.h"

namespace {

// Raw bytes as they come, or frames whose numbers are the fuzzer's and whose checksums may be
// right: without that help it would hardly ever get beyond the header's.
std::string script(fuzz::Input* in, bool checksum) {
  std::string bytes;
  uint64_t offset = 0;
  for (uint8_t kind = in->take<uint8_t>(); in->left() > 0; kind = in->take<uint8_t>()) {
    if (kind & 1) {
      bytes += in->bytes(kind >> 1);
      continue;
    }
    mccl::Frame frame{0x4d434631, 0, offset, 0, 0};
    std::string payload = in->bytes(in->take<uint8_t>());
    frame.length = static_cast<uint32_t>(payload.size());
    if (kind & 2) frame.length = in->take<uint32_t>();
    if (kind & 4) frame.offset = in->take<uint8_t>();
    if (kind & 8) frame.offset = in->take<uint64_t>();
    if (checksum != ((kind & 16) != 0)) frame.crc = mccl::crc32c(0, payload.data(), payload.size());
    frame.header_crc = mccl::crc32c(0, &frame, offsetof(mccl::Frame, header_crc));
    if (kind & 32) frame.header_crc ^= 1u << (kind & 31);
    bytes.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
    bytes += payload;
    offset = frame.offset + payload.size();
    if (kind & 64) break;
  }
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  uint8_t flags = in.take<uint8_t>();
  bool checksum = (flags & 4) != 0;
  uint32_t rails = (flags & 3u) + 1;
  static fuzz::NoPoller poller;
  std::vector<fuzz::Wire> wires(rails);
  std::vector<int32_t> fds;
  size_t total = 0;
  for (fuzz::Wire& wire : wires) {
    wire.incoming = true;
    wire.pattern = in.take<uint32_t>() | 1;
    wire.end = static_cast<fuzz::WireEnd>(in.take<uint8_t>() % 3);
    wire.bytes = script(&in, checksum);
    total += wire.bytes.size();
    fds.push_back(fuzz::open_wire(&wire));
  }
  size_t first = 1 + (flags >> 3);
  {
    mccl::Stream stream;
    fuzz::require(stream.open(fds.data(), rails, checksum, &poller), "open failed");
    size_t delivered = 0;
    for (int idle = 0; idle < 20;) {
      auto one = std::make_unique<char[]>(first);
      auto two = std::make_unique<char[]>(300);
      iovec parts[2] = {{one.get(), first}, {two.get(), 300}};
      size_t moved = 0;
      mccl::IoResult result = stream.receive(parts, 2, &moved);
      fuzz::require(moved <= first + 300, "more delivered than asked for");
      delivered += moved;
      if (result == mccl::IoResult::kMoved) {
        fuzz::require(moved > 0, "moved nothing and says it moved");
        idle = 0;
      } else if (result == mccl::IoResult::kBlocked) {
        ++idle;
      } else {
        break;
      }
      stream.look_again();
    }
    fuzz::require(delivered <= total, "more delivered than was sent");
  }
  fuzz::forget_wires();
  return 0;
}
