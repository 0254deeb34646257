// Point-to-point messages: framed by a header, matched by source and tag, parked up to a
// limit when they arrive before their receive; beyond it the sender is held back.

#include <algorithm>
#include <cstring>

#include "engine.h"
#include "util.h"

namespace mccl {

void Engine::begin_message(Op* op) {
  Comm& comm = *op->comm;
  comm.messages.push_back(op);
  op->ready = !op->produced.read;
  if (op->collective == MCCL_SEND) {
    Lane& lane = comm.lane(op->peer, MCCL_P2P_TX);
    lane.sends.push_back(op);
    list_lane(&lane);
    return;
  }
  for (auto& info : comm.peers) {
    auto& lane = info->lanes[MCCL_P2P_RX];
    if (lane && lane->stream.is_open()) list_lane(lane.get());
  }
  deliver_parked(op);
}

bool Engine::advance_message_tx(Lane* lane) {
  if (!lane->stream.is_open() || lane->closed_at != 0) return false;
  bool moved = false;
  if (!lane->stream.flushed()) {
    IoResult result = lane->stream.flush();
    if (result != IoResult::kMoved && result != IoResult::kBlocked) {
      lane_failed(lane, result, nullptr, "send");
      return false;
    }
  }
  size_t budget = kPieceBytes;
  while (!lane->sends.empty() && budget > 0) {
    Op* op = lane->sends.front();
    if (!message_ready(op)) break;
    if (lane->header_moved == 0) {
      if (op->record.state != kStarted) record_start(op);
      lane->message_header = {kMessageMagic, op->dtype, op->comm->config.epoch, op->tag, op->bytes};
    }
    iovec parts[2];
    int n = 0;
    size_t header_left = sizeof(MessageHeader) - lane->header_moved;
    if (header_left > 0) {
      parts[n++] = {reinterpret_cast<char*>(&lane->message_header) + lane->header_moved,
                    header_left};
    }
    size_t body = std::min<size_t>(op->bytes - op->moved, budget);
    if (body > 0) parts[n++] = {op->buffer + op->moved, body};
    size_t sent = 0;
    IoResult result = lane->stream.send(parts, n, &sent);
    if (result != IoResult::kMoved) {
      if (result != IoResult::kBlocked) lane_failed(lane, result, op, "send");
      break;
    }
    moved = true;
    size_t header_part = std::min(sent, header_left);
    lane->header_moved += header_part;
    op->moved += sent - header_part;
    op->record.bytes_sent += sent;
    op->comm->counters.bytes_sent += sent;
    budget -= std::min(budget, sent);
    if (lane->header_moved == sizeof(MessageHeader) && op->moved == op->bytes) {
      lane->sends.pop_front();
      lane->header_moved = 0;
      finish_op(op, OpState::kDone);
    }
  }
  return moved;
}

bool Engine::advance_message_rx(Lane* lane) {
  if (!lane->stream.is_open() || lane->closed_at != 0) return false;
  Comm* comm = lane->comm;
  bool moved = false;
  size_t budget = kPieceBytes;
  while (budget > 0 && !comm->failed_operations) {
    if (!lane->message) {
      if (!read_message_header(lane)) break;
      moved = true;
    }
    Message& message = *lane->message;
    if (!message.target && !message.parked && !place_message(lane)) break;
    if (comm->broken) break;
    if (message.target && !message.parked && !message_ready(message.target)) break;
    uint64_t left = message.header.bytes - message.have;
    if (left > 0) {
      char* base = message.parked ? message.parked.get() : message.target->buffer;
      iovec part{base + message.have, std::min<size_t>(left, kPieceBytes)};
      size_t got = 0;
      IoResult result = lane->stream.receive(&part, 1, &got);
      if (result != IoResult::kMoved) {
        if (result != IoResult::kBlocked) lane_failed(lane, result, message.target, "receive");
        break;
      }
      moved = true;
      message.have += got;
      comm->counters.bytes_received += got;
      budget -= std::min(budget, got);
      if (!message.complete()) continue;
    }
    if (message.target) {
      finish_receive(comm, std::move(lane->message));
    } else {
      comm->parked.push_back(std::move(lane->message));
    }
    moved = true;
  }
  return moved;
}

// True when a whole header has arrived and lane->message stands for it.
bool Engine::read_message_header(Lane* lane) {
  size_t left = sizeof(MessageHeader) - lane->header_moved;
  iovec part{reinterpret_cast<char*>(&lane->message_header) + lane->header_moved, left};
  size_t got = 0;
  IoResult result = lane->stream.receive(&part, 1, &got);
  if (result != IoResult::kMoved) {
    if (result != IoResult::kBlocked) lane_failed(lane, result, nullptr, "receive");
    return false;
  }
  lane->header_moved += got;
  lane->comm->counters.bytes_received += got;
  if (lane->header_moved < sizeof(MessageHeader)) return false;
  lane->header_moved = 0;
  const MessageHeader& header = lane->message_header;
  if (header.magic != kMessageMagic || header.epoch != lane->comm->config.epoch) {
    lane->comm->fail(MCCL_FAIL_CORRUPT, lane->peer, nullptr, "header",
                     "sent bytes that are no message header");
    return false;
  }
  lane->message = std::make_unique<Message>();
  lane->message->peer = lane->peer;
  lane->message->header = header;
  return true;
}

// Finds the message its receive, or room to park. False: neither, so it stays in the socket
// and its sender is held back.
bool Engine::place_message(Lane* lane) {
  Comm* comm = lane->comm;
  Message& message = *lane->message;
  if (Op* op = match_receive(comm, message.peer, message.header.tag)) {
    if (!check_size(comm, message, op)) return false;
    message.target = op;
    record_start(op);
    return true;
  }
  // The size is the sender's word: no sum with it. Empty messages cost memory, too.
  uint64_t limit = comm->config.park_bytes;
  uint64_t held = comm->counters.parked_bytes;
  if (message.header.bytes > limit - held) return false;
  if (comm->parked.size() * sizeof(Message) > limit) return false;
  message.parked.reset(new (std::nothrow) char[std::max<uint64_t>(message.header.bytes, 1)]);
  if (!message.parked) return false;
  comm->counters.parked_bytes += message.header.bytes;
  comm->counters.parked_peak =
      std::max<uint64_t>(comm->counters.parked_peak, held + message.header.bytes);
  return true;
}

Op* Engine::match_receive(Comm* comm, int32_t peer, uint64_t tag) {
  for (Op* op : comm->messages) {
    if (op->collective != MCCL_RECV || op->source >= 0) continue;
    if ((op->peer < 0 || op->peer == peer) && op->tag == tag) {
      op->source = peer;
      return op;
    }
  }
  return nullptr;
}

bool Engine::check_size(Comm* comm, const Message& message, Op* op) {
  if (message.header.bytes == op->bytes) return true;
  comm->fail(MCCL_FAIL_MISMATCH, message.peer, op, "header",
             "sent " + std::to_string(message.header.bytes) + " bytes with tag " +
                 std::to_string(op->tag) + ", but " + comm->name_of(comm->config.rank) +
                 " receives " + std::to_string(op->bytes) +
                 " bytes: both sides must name tensors of the same size");
  return false;
}

// A receive that finds its message parked already, whole or still arriving.
bool Engine::deliver_parked(Op* op) {
  Comm* comm = op->comm.get();
  auto fits = [op](const Message& message) {
    return !message.target && (op->peer < 0 || op->peer == message.peer) &&
           op->tag == message.header.tag;
  };
  for (size_t i = 0; i < comm->parked.size(); ++i) {
    if (!fits(*comm->parked[i])) continue;
    std::unique_ptr<Message> message = std::move(comm->parked[i]);
    comm->parked.erase(comm->parked.begin() + static_cast<ptrdiff_t>(i));
    op->source = message->peer;
    if (!check_size(comm, *message, op)) return false;
    message->target = op;
    record_start(op);
    finish_receive(comm, std::move(message));
    return true;
  }
  for (auto& info : comm->peers) {
    auto& lane = info->lanes[MCCL_P2P_RX];
    if (!lane || !lane->message || !lane->message->parked || !fits(*lane->message)) continue;
    op->source = lane->peer;
    if (!check_size(comm, *lane->message, op)) return false;
    lane->message->target = op;
    record_start(op);
    return true;
  }
  return false;
}

// O1: the GPU is done with the memory of this message.
bool Engine::message_ready(Op* op) {
  if (!op->ready) op->ready = op->produced.read(op->produced.context) >= op->produced_value;
  return op->ready;
}

// The whole message is here. Where the GPU still uses the receiver's memory it stays parked,
// for deliver_waiting.
void Engine::finish_receive(Comm* comm, std::unique_ptr<Message> message) {
  Op* op = message->target;
  if (message->parked) {
    if (!message_ready(op)) {
      comm->parked.push_back(std::move(message));
      return;
    }
    if (op->bytes > 0) std::memcpy(op->buffer, message->parked.get(), op->bytes);
    comm->counters.parked_bytes -= op->bytes;
  }
  op->record.bytes_received += op->bytes;
  finish_op(op, OpState::kDone);
}

// Parked messages whose receive only waited for the GPU.
bool Engine::deliver_waiting(Comm* comm) {
  bool moved = false;
  for (size_t i = 0; i < comm->parked.size();) {
    Op* op = comm->parked[i]->target;
    if (op == nullptr || !message_ready(op)) {
      ++i;
      continue;
    }
    std::unique_ptr<Message> message = std::move(comm->parked[i]);
    comm->parked.erase(comm->parked.begin() + static_cast<ptrdiff_t>(i));
    finish_receive(comm, std::move(message));
    moved = true;
  }
  return moved;
}

}  // namespace mccl
