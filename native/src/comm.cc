#include "comm.h"

#include <algorithm>
#include <cstring>

#include "engine.h"
#include "util.h"

namespace mccl {

namespace {

void copy_text(char* out, size_t capacity, const std::string& text) {
  size_t n = std::min(text.size(), capacity - 1);
  std::memcpy(out, text.data(), n);
  out[n] = 0;
}

}  // namespace

Comm::Comm(const mccl_comm_config& given) : config(given), recorder(given.record_capacity) {
  peers.reserve(static_cast<size_t>(given.size));
  for (int32_t i = 0; i < given.size; ++i) peers.push_back(std::make_unique<PeerInfo>());
}

Lane& Comm::lane(int32_t peer, uint32_t channel) {
  std::unique_ptr<Lane>& slot = peers[static_cast<size_t>(peer)]->lanes[channel];
  if (!slot) {
    slot = std::make_unique<Lane>();
    slot->comm = this;
    slot->peer = peer;
    slot->channel = channel;
  }
  return *slot;
}

std::string Comm::name_of(int32_t peer) {
  std::string name = "rank " + std::to_string(peer);
  std::lock_guard<std::mutex> lock(error_mutex);
  const std::string& label = peers[static_cast<size_t>(peer)]->label;
  return label.empty() ? name : name + " (" + label + ")";
}

std::string Comm::describe_peer(int32_t peer) {
  PeerInfo& info = *peers[static_cast<size_t>(peer)];
  if (info.flags & kPeerLeft) return name_of(peer) + " has left the group";
  if (info.controls == 0) return name_of(peer) + " has not connected yet";
  uint32_t current = info.collective;
  std::string text = name_of(peer) + " last reported ";
  if (current == 255) {
    text += "that it is in no collective, after completing ";
  } else {
    text += std::string("that it is in ") + collective_name(current) + ", after completing ";
  }
  return text + std::to_string(info.completed.load()) + " of " +
         std::to_string(info.issued.load()) + " issued";
}

bool Comm::fail(const mccl_error& error) {
  {
    std::lock_guard<std::mutex> lock(error_mutex);
    if (broken.load()) return false;
    first_error = error;
    broken.store(true);
  }
  Engine* engine = Engine::get();
  if (engine == nullptr) return true;
  engine->control().spread(this);
  Request wake{Request::kOperation, shared_from_this(), nullptr, -1, 0, {}};
  engine->post(std::move(wake));  // without an operation: just look at this communicator
  return true;
}

bool Comm::fail(uint32_t failure, int32_t culprit, const Op* op, const char* phase,
                const std::string& message) {
  mccl_error error{};
  error.failure = failure;
  error.culprit = culprit;
  error.reporter = config.rank;
  error.collective = op != nullptr ? op->collective : current.load();
  error.sequence = op != nullptr ? op->sequence : completed.load();
  error.waited_us = op != nullptr ? now_us() - op->submitted : 0;
  copy_text(error.phase, sizeof(error.phase), phase);
  std::string text = culprit >= 0 && culprit != config.rank ? name_of(culprit) + ": " : "";
  copy_text(error.message, sizeof(error.message), text + message);
  return fail(error);
}

void Comm::fail_mismatch(int32_t peer, const WireHeader& theirs, const WireHeader& mine,
                         const Op* op) {
  if (theirs.magic != kWireMagic) {
    fail(MCCL_FAIL_CORRUPT, peer, op, "header", "sent bytes that are no collective header");
  } else if (theirs.epoch != mine.epoch) {
    fail(MCCL_FAIL_MISMATCH, peer, op, "header",
         "belongs to another incarnation of group '" + std::string(config.name) + "'");
  } else {
    fail(MCCL_FAIL_MISMATCH, peer, op, "header",
         "called " + describe(theirs) + " of group '" + config.name + "', but " +
             name_of(config.rank) + " called " + describe(mine) +
             ": every rank must issue the same collectives in the same order");
  }
}

void Comm::note_front(const Op* op) {
  std::lock_guard<std::mutex> lock(front_mutex);
  front = op != nullptr ? header_of(op) : WireHeader{};
  current.store(op != nullptr ? op->collective : 255);
}

WireHeader Comm::copy_front() {
  std::lock_guard<std::mutex> lock(front_mutex);
  return front;
}

}  // namespace mccl
