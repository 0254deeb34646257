// The driver's loop: what whoever holds drive_mutex_ does. See engine.h.

#include <sched.h>

#include <algorithm>

#include "engine.h"
#include "util.h"

namespace mccl {

namespace {

constexpr int64_t kInlineUs = 200000;      // a synchronous caller drives this long, then waits
constexpr uint32_t kPassesBetweenChecks = 1024;

}  // namespace

void Engine::list_lane(Lane* lane) {
  if (lane->listed) return;
  lane->listed = true;
  lanes_.push_back(lane);
}

void Engine::list_comm(Comm* comm) {
  if (comm->busy_listed) return;
  comm->busy_listed = true;
  comm->busy_since = now_us();
  comms_.push_back(comm);
}

// Waits for events and notes them; returns as Poller::wait does.
int Engine::poll(int64_t timeout_us) {
  PollEvent events[64];
  int n = poller_->wait(events, 64, timeout_us);
  for (int i = 0; i < n; ++i) {
    auto* rail = static_cast<Rail*>(events[i].tag);
    if (rail == nullptr) continue;
    rail->readable = rail->readable || events[i].readable;
    rail->writable = rail->writable || events[i].writable;
  }
  return n;
}

// until: return once this operation has finished or it has been driven for kInlineUs;
// nullptr: return when nothing is left to do.
void Engine::drive(const Op* until) {
  driving_.store(true);
  int64_t begun = until != nullptr ? now_us() : 0;
  int64_t stalled_since = 0;
  uint32_t passes = 0;
  for (;;) {
    if (inbox_filled_.load(std::memory_order_acquire)) drain_inbox();
    bool moved = pass();
    if (until != nullptr ? until->finished() : comms_.empty() && lanes_.empty()) {
      if (until != nullptr || !inbox_filled_.load()) break;
    }
    if (++passes % kPassesBetweenChecks == 0) next_check(now_us());  // also under steady traffic
    if (!moved || passes % 8 == 0) {
      moved = poll(0) > 0 || moved;
    }
    if (moved) {
      if (stalled_since != 0) {
        account_stall(now_us() - stalled_since);
        stalled_since = 0;
      }
      continue;
    }
    if (stalled_since == 0) stalled_since = now_us();
    bool interrupted = false;
    stall(until, stalled_since, &interrupted);
    if (until != nullptr && (interrupted || now_us() - begun > kInlineUs)) break;
  }
  driving_.store(false);
}

// One turn over everything that has something to do.
bool Engine::pass() {
  bool moved = false;
  for (size_t i = 0; i < comms_.size();) {
    Comm* comm = comms_[i];
    if (comm->broken.load(std::memory_order_relaxed) && !comm->failed_operations) {
      fail_operations(comm);
    }
    if (!comm->waiting.empty()) activate(comm);
    if (!comm->parked.empty() && deliver_waiting(comm)) moved = true;
    for (size_t k = 0; k < comm->running.size(); ++k) {
      Op* op = comm->running[k];
      if (!op->ready && !make_ready(op)) continue;
      if (!op->locals.empty() && advance_locals(op)) {
        moved = true;
        if (k >= comm->running.size() || comm->running[k] != op) break;  // it finished
      }
    }
    bool over = comm->waiting.empty() && comm->running.empty() && comm->messages.empty();
    if (over) {
      comm->counters.busy_us += now_us() - comm->busy_since;
      comm->busy_listed = false;
      comms_[i] = comms_.back();
      comms_.pop_back();
    } else {
      ++i;
    }
  }
  for (size_t i = 0; i < lanes_.size();) {
    Lane* lane = lanes_[i];
    switch (lane->channel) {
      case MCCL_COLLECTIVE_TX: moved = advance_tx(lane) || moved; break;
      case MCCL_COLLECTIVE_RX: moved = advance_rx(lane) || moved; break;
      case MCCL_P2P_TX: moved = advance_message_tx(lane) || moved; break;
      default: moved = advance_message_rx(lane) || moved; break;
    }
    // Of a closed lane only what somebody still waits for matters, to say why it failed.
    bool more = (lane->transmits() && !lane->stream.flushed()) ||
                (lane->channel == MCCL_P2P_RX && !lane->comm->messages.empty());
    bool keep = lane->pending() || (more && lane->closed_at == 0);
    if (lane->comm->failed_operations) keep = false;
    if (keep) {
      ++i;
    } else {
      lane->listed = false;
      lanes_[i] = lanes_.back();
      lanes_.pop_back();
    }
  }
  return moved;
}

void Engine::drain_inbox() {
  std::vector<Request> taken;
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    taken.swap(inbox_);
    inbox_filled_.store(false);
  }
  for (Request& request : taken) {
    Comm* comm = request.comm.get();
    if (request.kind == Request::kLink) {
      accept_link(request);
      continue;
    }
    if (request.kind == Request::kClose) {
      close_comm(comm);
      continue;
    }
    Op* op = request.op;
    if (op != nullptr) queue_tickets(op);
    if (comm->closed) {
      if (op != nullptr) finish_op(op, OpState::kFailed);
      continue;
    }
    if (std::find(known_.begin(), known_.end(), request.comm) == known_.end()) {
      known_.push_back(request.comm);
    }
    list_comm(comm);
    if (op == nullptr) continue;
    if (comm->failed_operations || comm->broken) {
      finish_op(op, OpState::kFailed);
    } else if (op->is_message()) {
      begin_message(op);
    } else {
      comm->waiting.push_back(op);
    }
  }
}

void Engine::accept_link(const Request& request) {
  Comm* comm = request.comm.get();
  Lane& lane = comm->lane(request.peer, request.channel);
  if (comm->closed || lane.stream.is_open()) {
    Stream surplus;  // a second link of this kind: closes it
    surplus.open(request.fds.data(), static_cast<uint32_t>(request.fds.size()), false,
                 poller_.get());
    return;
  }
  if (!lane.stream.open(request.fds.data(), static_cast<uint32_t>(request.fds.size()),
                        comm->config.checksum != 0, poller_.get())) {
    comm->fail(MCCL_FAIL_INTERNAL, request.peer, nullptr, "connect",
               "the system refused to watch a socket");
  }
  if (lane.transmits() && comm->config.send_thread != 0) lane.stream.offload(&sender_);
  if (lane.channel == MCCL_P2P_RX || lane.pending()) list_lane(&lane);
}

void Engine::close_comm(Comm* comm) {
  if (!comm->running.empty() || !comm->waiting.empty() || !comm->messages.empty()) {
    comm->fail(MCCL_FAIL_ABORTED, comm->config.rank, nullptr, "closing",
               "the group was destroyed with operations in flight");
    fail_operations(comm);
  }
  int64_t give_up = now_us() + 1000000;
  for (auto& info : comm->peers) {
    for (auto& lane : info->lanes) {
      if (!lane) continue;
      // A receiving stream has nothing to flush: what it holds was read ahead.
      while (lane->transmits() && !comm->broken && !lane->stream.flushed() && now_us() < give_up) {
        poll(1000);
        IoResult result = lane->stream.flush();
        if (result != IoResult::kMoved && result != IoResult::kBlocked) break;
      }
      std::erase(lanes_, lane.get());
      lane.reset();
    }
  }
  std::erase(comms_, comm);
  comm->parked.clear();
  {
    std::lock_guard<std::mutex> lock(done_mutex_);
    comm->closed.store(true);
    ++completions_;
  }
  done_.notify_all();
  std::erase_if(known_, [comm](const auto& known) { return known.get() == comm; });
}

bool Engine::tickets_pending() {
  for (Comm* comm : comms_) {
    for (Op* op : comm->running) {
      if (!op->produced.read) continue;
      if (!op->ready || !op->pieces.empty()) return true;
    }
    for (Op* op : comm->messages) {
      if (op->produced.read && !op->ready) return true;
    }
  }
  return false;
}

// Nothing moved: spin while traffic is expected, else sleep until something can happen.
void Engine::stall(const Op* until, int64_t stalled_since, bool* interrupted) {
  uint64_t spin = 0;
  bool yield = false;
  for (Comm* comm : comms_) {
    spin = std::max(spin, comm->config.spin_us);
    yield = yield || comm->config.yield_spin != 0;
  }
  int64_t now = now_us();
  if (now - stalled_since < static_cast<int64_t>(spin)) {
    if (yield) sched_yield();
    return;
  }
  int64_t sleep = next_check(now);
  if (inbox_filled_.load()) return;
  for (Comm* comm : comms_) {  // for whoever asks why it hangs
    if (comm->running.empty()) continue;
    Op* op = comm->running.front();
    for (Lane* lane : lanes_) {
      if (lane->comm != comm || lane->transmits() || lane->queue.empty()) continue;
      if (op->record.waiting_for != lane->peer) {
        op->record.waiting_for = lane->peer;
        comm->recorder.update(op->record_number, op->record);
      }
      break;
    }
  }
  if (until == nullptr && comms_.empty() && lanes_.empty()) return;
  int n = poll(sleep);
  if (n < 0) *interrupted = true;
  if (n == 0 && sleep >= kMaxSleepUs) {
    // Nothing for this long: trust no event, so that no rule about events can hang a job.
    for (Lane* lane : lanes_) lane->stream.look_again();
  }
}


void Engine::account_stall(int64_t duration) {
  for (Comm* comm : comms_) {
    Op* op = comm->running.empty() ? nullptr : comm->running.front();
    if (op != nullptr && op->produced.read && !op->ready) {
      comm->counters.blocked_ticket_us += duration;
      op->record.blocked_ticket_us += duration;
      continue;
    }
    bool receive = false;
    bool send = false;
    for (Lane* lane : lanes_) {
      if (lane->comm != comm || !lane->pending()) continue;
      (lane->transmits() ? send : receive) = true;
    }
    if (receive) {
      comm->counters.blocked_receive_us += duration;
      if (op != nullptr) op->record.blocked_receive_us += duration;
    } else if (send) {
      comm->counters.blocked_send_us += duration;
      if (op != nullptr) op->record.blocked_send_us += duration;
    }
  }
}

void Engine::fail_operations(Comm* comm) {
  comm->failed_operations = true;
  for (auto& info : comm->peers) {
    for (auto& lane : info->lanes) {
      if (!lane) continue;
      lane->queue.clear();
      lane->sends.clear();
      lane->message.reset();
      lane->stream.shut();
    }
  }
  while (!comm->running.empty()) finish_op(comm->running.front(), OpState::kFailed);
  while (!comm->waiting.empty()) {
    Op* op = comm->waiting.front();
    comm->waiting.pop_front();
    finish_op(op, OpState::kFailed);
  }
  std::vector<Op*> messages = comm->messages;
  for (Op* op : messages) finish_op(op, OpState::kFailed);
  comm->parked.clear();
}

void Engine::record_start(Op* op) {
  op->record.started_us = wall_us();
  op->record.state = kStarted;
  op->comm->recorder.update(op->record_number, op->record);
}

// Returns true, for callers that report movement.
bool Engine::finish_op(Op* op, OpState state) {
  Comm& comm = *op->comm;
  bool failed = state == OpState::kFailed;
  raise_tickets(op, op->pieces.size(), true);
  for (Op* dependent : op->dependents) {
    dependent->blockers -= 1;
    dependent->release();
  }
  op->dependents.clear();
  std::erase(comm.running, op);
  std::erase(comm.messages, op);
  op->record.completed_us = wall_us();
  op->record.state = failed ? kFailed : kCompleted;
  comm.recorder.update(op->record_number, op->record);
  comm.counters.operations += 1;
  if (failed) comm.counters.failed += 1;
  comm.counters.reduce_us += op->record.reduce_us;
  if (!op->is_message() && !failed) comm.completed.store(op->sequence);
  comm.in_flight.fetch_sub(1);
  if (!op->is_message()) comm.note_front(comm.running.empty() ? nullptr : comm.running.front());
  {
    std::lock_guard<std::mutex> lock(done_mutex_);
    ++completions_;
    op->state.store(static_cast<int>(state), std::memory_order_release);
  }
  if (waiters_.load() > 0) done_.notify_all();
  op->release();
  return true;
}

void Engine::queue_tickets(Op* op) {
  if (!op->consumed.raise) return;
  auto& queue = tickets_[op->consumed.context];
  if (op->pieces.empty()) {
    queue.push_back({op->consumed, op->consumed_value, op, false});
  } else {
    for (const mccl_piece& piece : op->pieces) {
      queue.push_back({op->consumed, piece.consumed_value, op, false});
    }
  }
}

// O2: a ticket is raised only when everything issued before it on that counter is done,
// because the counter is monotonic and a later value would release earlier waits.
void Engine::raise_tickets(Op* op, size_t pieces_done, bool all) {
  if (!op->consumed.raise) return;
  auto found = tickets_.find(op->consumed.context);
  if (found == tickets_.end()) return;
  auto& queue = found->second;
  // Pieces already raised have left the queue; what is left of this operation are its last ones.
  auto left = std::count_if(queue.begin(), queue.end(),
                            [op](const TicketEntry& entry) { return entry.op == op; });
  size_t seen = std::max<size_t>(op->pieces.size(), 1) - static_cast<size_t>(left);
  for (TicketEntry& entry : queue) {
    if (entry.op != op) continue;
    if (all || seen < pieces_done) entry.done = true;
    ++seen;
  }
  while (!queue.empty() && queue.front().done) {
    queue.front().ticket.raise(queue.front().ticket.context, queue.front().value);
    queue.pop_front();
  }
  if (queue.empty()) tickets_.erase(found);
}

}  // namespace mccl
