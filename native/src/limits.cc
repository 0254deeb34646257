// What the driver checks before it sleeps: operations' time limits, and lanes whose other side
// is gone. See engine.h.

#include <algorithm>
#include <string>

#include "engine.h"
#include "util.h"

namespace mccl {

namespace {

constexpr int64_t kTicketPollUs = 20;      // between looks at a GPU's ticket
constexpr int64_t kClosedGraceUs = 500000; // for the control link to say why data ended
constexpr int64_t kLateLinkUs = 3000000;   // for an accepted connection to reach the engine
constexpr int64_t kClosedPollUs = 5000;
constexpr int64_t kShortOfBuffersUs = 200; // until the system may have socket memory again

}  // namespace

// Checks limits and closed lanes; how long the driver may sleep, in µs.
int64_t Engine::next_check(int64_t now) {
  int64_t sleep = kMaxSleepUs;
  for (Comm* comm : comms_) {
    check_limits(comm, now);
    check_closed_lanes(comm, now);
    auto consider = [&](const Op* op) {
      sleep = std::min(sleep, std::max<int64_t>(op->submitted + op->timeout_us - now, 0) + 1000);
    };
    for (const Op* op : comm->running) consider(op);
    for (const Op* op : comm->messages) consider(op);
  }
  for (Lane* lane : lanes_) {
    if (lane->closed_at != 0) sleep = std::min(sleep, kClosedPollUs);
    if (lane->stream.short_of_buffers()) sleep = std::min(sleep, kShortOfBuffersUs);
  }
  if (tickets_pending()) sleep = std::min(sleep, kTicketPollUs);
  return sleep;
}

void Engine::check_limits(Comm* comm, int64_t now) {
  auto late = [&](const Op* op) { return now - op->submitted > op->timeout_us; };
  for (Op* op : comm->running) {
    if (!late(op)) continue;
    std::string text = std::string(collective_name(op->collective)) + " #" +
                       std::to_string(op->sequence) + " of group '" + comm->config.name +
                       "' did not complete within its timeout of " +
                       std::to_string(op->timeout_us / 1000) + " ms";
    int32_t culprit = -1;
    bool own_fault = !op->ready && op->blockers == 0 && op->produced.read;
    if (own_fault) {
      text += "; the GPU has not produced this rank's input yet";
      culprit = comm->config.rank;
    }
    for (Lane* lane : lanes_) {
      if (own_fault || lane->comm != comm || lane->queue.empty()) continue;
      if (culprit < 0 || !lane->transmits()) culprit = lane->peer;
      text += lane->transmits() ? "; waiting for a peer to take bytes: "
                                : "; waiting for bytes: ";
      text += comm->describe_peer(lane->peer);
    }
    comm->fail(MCCL_FAIL_TIMEOUT, culprit, op, "running", text);
    return;
  }
  for (const Op* op : comm->messages) {
    if (!late(op)) continue;
    std::string whom = op->peer < 0 ? "from any rank" : comm->describe_peer(op->peer);
    comm->fail(MCCL_FAIL_TIMEOUT, op->peer, op, "running",
               std::string(op->collective == MCCL_SEND ? "send" : "recv") + " of " +
                   std::to_string(op->bytes) + " bytes with tag " + std::to_string(op->tag) +
                   " did not complete within its timeout of " +
                   std::to_string(op->timeout_us / 1000) + " ms; " + whom);
    return;
  }
}

// Whether we receive from `peer` over a link that has not been handed to us yet. The peer may
// have connected, sent all it had and left: its goodbye comes by another socket and can be first.
bool Engine::awaits_link(const Comm* comm, int32_t peer) const {
  const auto& lanes = comm->peers[static_cast<size_t>(peer)]->lanes;
  const Lane* collective = lanes[MCCL_COLLECTIVE_RX].get();
  if (collective != nullptr && collective->pending() && !collective->stream.is_open()) return true;
  const Lane* messages = lanes[MCCL_P2P_RX].get();
  if (messages != nullptr && messages->stream.is_open()) return false;
  return std::any_of(comm->messages.begin(), comm->messages.end(), [peer](const Op* op) {
    return op->collective == MCCL_RECV && (op->peer < 0 || op->peer == peer);
  });
}

bool Engine::needs(const Comm* comm, int32_t peer) const {
  for (const Lane* lane : lanes_) {
    if (lane->comm == comm && lane->peer == peer && lane->pending()) return true;
  }
  return std::any_of(comm->messages.begin(), comm->messages.end(), [peer](const Op* op) {
    return op->collective == MCCL_RECV && op->peer == peer;
  });
}

// A lane whose other side is gone while we still need it. The control link usually knows
// why within a moment; without its word the peer itself is to blame.
void Engine::check_closed_lanes(Comm* comm, int64_t now) {
  if (comm->broken) return;
  Op* op = comm->running.empty() ? nullptr : comm->running.front();
  int32_t gone = 0;
  for (int32_t peer = 0; peer < comm->config.size; ++peer) {
    PeerInfo& info = *comm->peers[static_cast<size_t>(peer)];
    bool left = (info.flags & kPeerLeft) != 0;
    int64_t closed = 0;
    for (auto& lane : info.lanes) {
      if (!lane) continue;
      closed = std::max(closed, lane->closed_at);
      // Bytes it sent before leaving may still be in a socket that we read from.
      if (lane->listed && !lane->transmits() && lane->stream.is_open() && lane->closed_at == 0) {
        left = false;
      }
    }
    if (left && awaits_link(comm, peer) && now - info.left_at < kLateLinkUs) left = false;
    gone += left;
    if ((!left && closed == 0) || !needs(comm, peer)) continue;
    if (left) {
      comm->fail(MCCL_FAIL_PEER_LEFT, peer, op, "running",
                 "it has left the group (destroy_process_group or exit) while this rank still "
                 "needs it");
      return;
    }
    if (now - closed > kClosedGraceUs) {
      comm->fail(MCCL_FAIL_PEER_DIED, peer, op, "running", "its connection closed");
      return;
    }
  }
  if (gone == comm->config.size - 1 && gone > 0 && needs(comm, -1)) {
    comm->fail(MCCL_FAIL_PEER_LEFT, -1, op, "running",
               "every other rank has left the group while this rank receives from any of them");
  }
}

}  // namespace mccl
