// Control links: heartbeats, answers, aborts and goodbyes of two links to two peers, in any order
// and cut anywhere, also after our own goodbye. What is kept of them makes sense, and neither
// memory nor what waits to be sent grows beyond a bound.

#include <algorithm>

#include "harness.h"
#include "util.h"

namespace {

constexpr uint32_t kMagic = 0x4d434b31;

std::string script(fuzz::Input* in) {
  std::string bytes;
  for (uint8_t kind = in->take<uint8_t>(); in->left() > 0; kind = in->take<uint8_t>()) {
    if (kind & 1) {
      bytes += in->bytes(kind >> 1);
      continue;
    }
    uint32_t type = kind >> 1 & 7;
    uint32_t size = type == 3 ? sizeof(mccl_error) : type == 4 ? 0 : 24 + sizeof(mccl::WireHeader);
    if (kind & 16) size = in->take<uint32_t>();
    uint32_t frame[4] = {kMagic, type, size, 0};
    int repeats = kind & 32 ? 64 : 1;
    std::string body = in->bytes(std::min<uint32_t>(size, 4096));
    body.resize(std::min<uint32_t>(size, 4096));
    for (int i = 0; i < repeats; ++i) {
      bytes.append(reinterpret_cast<const char*>(frame), sizeof(frame));
      bytes += body;
    }
    if (kind & 64) break;
  }
  return bytes;
}

void check_error(const mccl::Comm& comm) {
  if (!comm.broken) return;
  const mccl_error& error = comm.first_error;
  int32_t size = comm.config.size;
  fuzz::require(error.failure > MCCL_FAIL_NONE && error.failure <= MCCL_FAIL_INTERNAL,
                "broken without a failure that has a name");
  fuzz::require(error.culprit >= -1 && error.culprit < size, "a culprit that is no rank");
  fuzz::require(error.reporter >= -1 && error.reporter < size, "a reporter that is no rank");
  fuzz::require(error.collective <= MCCL_RECV || error.collective == 255, "an unknown collective");
  fuzz::require(std::memchr(error.phase, 0, sizeof(error.phase)) != nullptr, "phase has no end");
  fuzz::require(std::memchr(error.message, 0, sizeof(error.message)) != nullptr,
                "message has no end");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  mccl::Engine* engine = fuzz::engine();
  mccl::Control& control = engine->control();
  uint8_t flags = in.take<uint8_t>();
  mccl_comm_config config = fuzz::config(0, 3);
  auto* handle = new mccl_comm{std::make_shared<mccl::Comm>(config)};
  mccl::Comm* comm = handle->comm.get();
  if (flags & 1) comm->in_flight = 1;
  if (flags & 2) comm->front = {mccl::kWireMagic, 0, 7, 0, 7, -1, 0, 7, 5, 100};
  fuzz::Wire wires[2];
  for (int i = 0; i < 2; ++i) {
    wires[i].pattern = in.take<uint32_t>() | 1;
    wires[i].end = static_cast<fuzz::WireEnd>(in.take<uint8_t>() % 3);
    wires[i].takes = (flags & 4) == 0;
    wires[i].bytes = script(&in);
    control.add(handle->comm, flags & 8 ? 1 : 1 + i, fuzz::open_wire(&wires[i]));
  }
  // As Control::run does, with a goodbye of ours at a time of the fuzzer's choice.
  int until_goodbye = flags >> 4;
  for (int turn = 0; turn < 24; ++turn) {
    for (auto& link : control.links_) {
      if (!link->ended) control.read_link(link.get());
      fuzz::require(link->outgoing.size() <= 64 * 1024, "what waits to be sent has no bound");
      fuzz::require(link->incoming.size() <= 8192, "what waits to be parsed has no bound");
    }
    control.settle(mccl::now_us());
    if (turn == until_goodbye) control.goodbye(comm);
    check_error(*comm);
    for (auto& info : comm->peers) {
      fuzz::require(info->controls >= 0, "a link ended twice");
      fuzz::require(info->collective <= MCCL_RECV || info->collective == 255,
                    "a peer in an unknown collective");
    }
    bool drained = wires[0].drained() && wires[1].drained() && turn > until_goodbye;
    if (control.links_.empty() || drained) break;
  }
  for (int32_t peer = 1; peer < 3; ++peer) comm->describe_peer(peer);
  comm->in_flight = 0;
  for (auto& link : control.links_) {
    if (!link->ended) control.end(link.get());
  }
  control.settle(mccl::now_us());
  std::vector<mccl_op*> none;
  fuzz::finish(handle, &none);
  fuzz::forget_wires();
  return 0;
}
