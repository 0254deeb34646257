// Point-to-point: message headers and bodies from two peers, plain and framed, before and after
// the receives they belong to.

#include <memory>

#include "harness.h"
#include "reduce.h"

namespace {

std::string script(fuzz::Input* in, bool framed) {
  std::string bytes;
  for (uint8_t kind = in->take<uint8_t>(); in->left() > 0; kind = in->take<uint8_t>()) {
    if (kind & 1) {
      bytes += in->bytes(kind >> 1);
      continue;
    }
    mccl::MessageHeader header{mccl::kMessageMagic, 0, 7, in->take<uint8_t>() % 4u, 0};
    std::string body = in->bytes(in->take<uint8_t>());
    header.bytes = kind & 2 ? in->take<uint64_t>() : body.size();
    if (kind & 4) header.epoch = in->take<uint8_t>();
    for (int i = kind & 8 ? 100 : 1; i > 0; --i) {
      bytes.append(reinterpret_cast<const char*>(&header), sizeof(header));
      if (i > 1 && !body.empty()) break;
      bytes += body;
    }
    if (kind & 64) break;
  }
  if (!framed) return bytes;
  std::string frames;
  for (size_t at = 0; at < bytes.size(); at += mccl::kPieceBytes) {
    std::string payload = bytes.substr(at, mccl::kPieceBytes);
    mccl::Frame frame{0x4d434631, static_cast<uint32_t>(payload.size()), at,
                      mccl::crc32c(0, payload.data(), payload.size()), 0};
    frame.header_crc = mccl::crc32c(0, &frame, offsetof(mccl::Frame, header_crc));
    frames.append(reinterpret_cast<const char*>(&frame), sizeof(frame)).append(payload);
  }
  return frames;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  fuzz::engine();
  uint8_t flags = in.take<uint8_t>();
  mccl_comm_config config = fuzz::config(0, 3);
  config.checksum = flags & 1;
  auto* handle = new mccl_comm{std::make_shared<mccl::Comm>(config)};
  fuzz::Wire wires[2];
  std::vector<mccl_op*> ops;
  std::vector<std::unique_ptr<char[]>> memory;
  auto receive = [&] {
    uint8_t what = in.take<uint8_t>();
    uint8_t bytes = in.take<uint8_t>();
    mccl_p2p_desc desc{};
    desc.peer = what % 3 == 0 ? -1 : what % 3;
    desc.tag = what >> 2 & 3;
    desc.bytes = bytes;
    desc.timeout_us = -1;
    memory.push_back(std::make_unique<char[]>(bytes));
    desc.buffer = memory.back().get();
    mccl_op* op = nullptr;
    if (mccl_p2p(handle, &desc, &op) == MCCL_OK) ops.push_back(op);
  };
  for (int i = flags >> 1 & 3; i > 0; --i) receive();
  for (int i = 0; i < 2; ++i) {
    wires[i].incoming = true;
    wires[i].pattern = in.take<uint32_t>() | 1;
    wires[i].end = static_cast<fuzz::WireEnd>(in.take<uint8_t>() % 3);
    wires[i].bytes = script(&in, config.checksum != 0);
    int32_t fd = fuzz::open_wire(&wires[i]);
    mccl_comm_add_link(handle, 1 + i, MCCL_P2P_RX, &fd, 1);
  }
  mccl::Comm* comm = handle->comm.get();
  auto check = [&] {
    fuzz::drive(comm);
    uint64_t parked = 0;
    for (auto& message : comm->parked) parked += message->header.bytes;
    fuzz::require(parked <= config.park_bytes, "more parked than the limit");
    fuzz::require(comm->parked.size() * sizeof(mccl::Message) <=
                      config.park_bytes + 3 * sizeof(mccl::Message),
                  "empty messages are parked without a limit");
    uint64_t counted = comm->counters.parked_bytes;
    fuzz::require(counted <= config.park_bytes, "the count of parked bytes went wrong");
  };
  check();
  for (int i = flags >> 3 & 3; i > 0; --i) receive();
  check();
  fuzz::finish(handle, &ops);
  fuzz::forget_wires();
  return 0;
}
