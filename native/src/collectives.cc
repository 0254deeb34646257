// Collectives on their lanes: activation in issue order, fingerprints, steps.

#include <algorithm>
#include <cstring>

#include "engine.h"
#include "fingerprint.h"
#include "reduce.h"
#include "types.h"
#include "util.h"

namespace mccl {

namespace {

// Operations in the lanes at once, a communicator: enough for the next one's first steps to
// start while the last one's tail drains.
constexpr size_t kWindow = 16;
constexpr uint64_t kLocalElements = 1 << 16;

}  // namespace

void Engine::activate(Comm* comm) {
  while (!comm->waiting.empty() && comm->running.size() < kWindow && !comm->failed_operations) {
    Op* op = comm->waiting.front();
    comm->waiting.pop_front();
    op->state.store(static_cast<int>(OpState::kRunning), std::memory_order_release);
    for (Op* earlier : comm->running) {
      if (!conflicts(earlier, op)) continue;
      op->blockers += 1;
      op->retain();
      earlier->dependents.push_back(op);
    }
    comm->running.push_back(op);
    comm->note_front(comm->running.front());
    enqueue_steps(op);
    if (op->remaining == 0) finish_op(op, OpState::kDone);
  }
}

// Whether `later` must wait for `earlier`: they share memory and one of them writes it.
bool Engine::conflicts(const Op* earlier, const Op* later) const {
  for (uint32_t i = 0; i < earlier->plan->n_external; ++i) {
    const Extent& a = earlier->plan->extents[i];
    const char* a_begin = earlier->buffers[i];
    const char* a_end = a_begin + a.count * dtype_size(earlier->dtype);
    for (uint32_t k = 0; k < later->plan->n_external; ++k) {
      const Extent& b = later->plan->extents[k];
      if (!a.written && !b.written && later->redop != MCCL_PREMUL_SUM) continue;
      const char* b_begin = later->buffers[k];
      const char* b_end = b_begin + b.count * dtype_size(later->dtype);
      if (a_begin < b_end && b_begin < a_end) return true;
    }
  }
  return false;
}

void Engine::enqueue_steps(Op* op) {
  const Plan& plan = *op->plan;
  Comm& comm = *op->comm;
  op->steps.resize(plan.steps.size());
  op->locals = plan.locals;
  op->remaining = static_cast<uint32_t>(plan.steps.size());
  for (const mccl_scratch& scratch : plan.scratch) {
    uint32_t dtype = scratch.accumulate ? accumulate_dtype(op->dtype) : op->dtype;
    ScratchBlock block = scratch_pool().take(std::max<size_t>(scratch.count * dtype_size(dtype), 1));
    op->buffers.push_back(block.memory.get());
    op->blocks.push_back(std::move(block));
  }
  for (uint32_t i = 0; i < plan.steps.size(); ++i) {
    const mccl_step& step = plan.steps[i];
    if (is_local(step)) continue;
    Lane& lane = comm.lane(step.peer, is_send(step) ? MCCL_COLLECTIVE_TX : MCCL_COLLECTIVE_RX);
    lane.queue.push_back({op, i});
    list_lane(&lane);
  }
}

// True once the operation may touch the caller's memory: nothing earlier uses it, and the
// GPU has produced it (O1). With pieces each step asks for its own part instead, except where
// all of it is scaled first.
bool Engine::make_ready(Op* op) {
  if (op->blockers > 0) return false;
  if (op->produced.read && (op->pieces.empty() || op->redop == MCCL_PREMUL_SUM)) {
    uint64_t needed = op->produced_value;
    for (const mccl_piece& piece : op->pieces) needed = std::max(needed, piece.produced_value);
    if (op->produced.read(op->produced.context) < needed) return false;
  }
  op->ready = true;
  record_start(op);
  if (op->redop == MCCL_PREMUL_SUM) prescale(op);
  return true;
}

bool Engine::advance_locals(Op* op) {
  bool moved = false;
  for (size_t i = 0; i < op->locals.size();) {
    uint32_t index = op->locals[i];
    if (advance_local(op, index, kLocalElements)) moved = true;
    if (op->step_done(index) && op->limit(index) == op->plan->steps[index].count) {
      op->locals.erase(op->locals.begin() + static_cast<ptrdiff_t>(i));
      moved = true;
      op->remaining -= 1;
    } else {
      ++i;
    }
  }
  if (moved) after_progress(op);
  return moved;
}

// Hands finished pieces over, and the whole operation when its last step is done.
void Engine::after_progress(Op* op) {
  if (!op->pieces.empty() && op->consumed.raise) {
    size_t done = op->pieces_consumed;
    while (done < op->pieces.size() && op->piece_consumed(op->pieces[done])) ++done;
    if (done != op->pieces_consumed) {
      op->pieces_consumed = done;
      raise_tickets(op, done, false);
    }
  }
  if (op->remaining == 0) finish_op(op, OpState::kDone);
}

void Engine::step_finished(Op* op) { op->remaining -= 1; }

bool Engine::advance_tx(Lane* lane) {
  bool moved = false;
  if (lane->stream.is_open() && !lane->stream.flushed()) {
    IoResult result = lane->stream.flush();
    if (result != IoResult::kMoved && result != IoResult::kBlocked) {
      lane_failed(lane, result, nullptr, "send");
    }
  }
  if (!lane->stream.is_open() || lane->closed_at != 0) return false;
  size_t budget = lane->stream.offloads() ? kOffloadPieceBytes : kPieceBytes;
  while (!lane->queue.empty() && budget > 0) {
    auto [op, index] = lane->queue.front();
    if (!op->ready && !make_ready(op)) break;
    const mccl_step& step = op->plan->steps[index];
    uint64_t limit = op->limit(index);
    bool header_due = op->plan->first[index] && lane->header_moved < sizeof(WireHeader);
    bool whole = op->steps[index].done == step.count && !header_due;
    if (!whole) {
      if (limit == op->steps[index].done) break;
      bool blocked = false;
      moved = send_step(lane, op, index, limit, &budget, &blocked) || moved;
      if (lane->closed_at != 0) break;
      header_due = op->plan->first[index] && lane->header_moved < sizeof(WireHeader);
      if (op->steps[index].done < step.count || header_due) {
        if (blocked) break;
        continue;
      }
    }
    lane->queue.pop_front();
    lane->header_moved = 0;
    lane->scratch_begin = lane->scratch_end = 0;
    step_finished(op);
    after_progress(op);
    moved = true;
  }
  return moved;
}

bool Engine::send_step(Lane* lane, Op* op, uint32_t index, uint64_t limit, size_t* budget,
                       bool* blocked) {
  const mccl_step& step = op->plan->steps[index];
  StepState& state = op->steps[index];
  size_t wire_size = dtype_size(op->wire_dtype);
  uint32_t src_dtype = op->buffer_dtype(step.src_buffer);
  iovec parts[2];
  int n = 0;
  size_t header_left = 0;
  if (op->plan->first[index] && lane->header_moved < sizeof(WireHeader)) {
    if (lane->header_moved == 0) lane->header = header_of(op);
    header_left = sizeof(WireHeader) - lane->header_moved;
    parts[n++] = {reinterpret_cast<char*>(&lane->header) + lane->header_moved, header_left};
  }
  size_t available = limit * wire_size - state.bytes;
  const char* from = op->buffers[step.src_buffer] + step.src_offset * wire_size + state.bytes;
  if (src_dtype != op->wire_dtype) {
    if (!lane->scratch) lane->scratch.reset(new char[kPieceBytes]);
    if (lane->scratch_begin == lane->scratch_end && limit > state.done) {
      uint64_t elements = std::min<uint64_t>(limit - state.done, kPieceBytes / wire_size);
      const char* src = op->buffers[step.src_buffer] +
                        (step.src_offset + state.done) * dtype_size(src_dtype);
      find_convert(op->wire_dtype, src_dtype)(lane->scratch.get(), src, elements);
      lane->scratch_begin = 0;
      lane->scratch_end = elements * wire_size;
    }
    from = lane->scratch.get() + lane->scratch_begin;
    available = lane->scratch_end - lane->scratch_begin;
  }
  size_t payload = std::min(available, *budget);
  if (payload > 0) parts[n++] = {const_cast<char*>(from), payload};
  if (n == 0) {
    *blocked = true;
    return false;
  }
  size_t sent = 0;
  IoResult result = lane->stream.send(parts, n, &sent);
  if (result != IoResult::kMoved) {
    *blocked = true;
    if (result != IoResult::kBlocked) lane_failed(lane, result, op, "send");
    return false;
  }
  op->record.bytes_sent += sent;
  op->comm->counters.bytes_sent += sent;
  size_t header_part = std::min(sent, header_left);
  lane->header_moved += header_part;
  size_t body = sent - header_part;
  state.bytes += body;
  state.done = state.bytes / wire_size;
  if (src_dtype != op->wire_dtype) lane->scratch_begin += body;
  *budget -= std::min(*budget, body);
  if (body > 0 && !op->pieces.empty()) after_progress(op);
  return true;
}

bool Engine::advance_rx(Lane* lane) {
  if (!lane->stream.is_open() || lane->closed_at != 0) return false;
  bool moved = false;
  size_t budget = kPieceBytes;
  while (!lane->queue.empty() && budget > 0) {
    auto [op, index] = lane->queue.front();
    if (!op->ready && !make_ready(op)) break;
    const mccl_step& step = op->plan->steps[index];
    bool header_due = op->plan->first[index] && lane->header_moved < sizeof(WireHeader);
    if (op->steps[index].done < step.count || header_due) {
      bool blocked = false;
      moved = receive_step(lane, op, index, op->limit(index), &budget, &blocked) || moved;
      if (lane->closed_at != 0 || lane->queue.empty()) break;
      header_due = op->plan->first[index] && lane->header_moved < sizeof(WireHeader);
      if (op->steps[index].done < step.count || header_due) {
        if (blocked) break;
        continue;
      }
    }
    lane->queue.pop_front();
    lane->header_moved = 0;
    lane->scratch_begin = lane->scratch_end = 0;
    step_finished(op);
    after_progress(op);
    moved = true;
  }
  return moved;
}

// Receives into scratch where the step computes, else straight into the caller's memory.
bool Engine::receive_step(Lane* lane, Op* op, uint32_t index, uint64_t limit, size_t* budget,
                          bool* blocked) {
  const mccl_step& step = op->plan->steps[index];
  StepState& state = op->steps[index];
  size_t wire_size = dtype_size(op->wire_dtype);
  uint32_t dst_dtype = op->buffer_dtype(step.dst_buffer);
  bool direct = step.kind == MCCL_STEP_RECV && dst_dtype == op->wire_dtype;
  if (!direct && !lane->scratch) lane->scratch.reset(new char[kPieceBytes]);
  iovec parts[2];
  int n = 0;
  size_t header_left = 0;
  if (op->plan->first[index] && lane->header_moved < sizeof(WireHeader)) {
    header_left = sizeof(WireHeader) - lane->header_moved;
    parts[n++] = {reinterpret_cast<char*>(&lane->header) + lane->header_moved, header_left};
  }
  size_t step_bytes = step.count * wire_size;
  size_t want;
  char* into;
  if (direct) {
    want = limit * wire_size - state.bytes;
    into = op->buffers[step.dst_buffer] + step.dst_offset * wire_size + state.bytes;
  } else {
    // uint64_t and size_t are different types on macOS.
    const size_t missing = step_bytes - state.bytes - lane->scratch_end;
    want = std::min<size_t>(kPieceBytes - lane->scratch_end, missing);
    into = lane->scratch.get() + lane->scratch_end;
  }
  want = std::min(want, kPieceBytes);
  if (want > 0) parts[n++] = {into, want};
  size_t got = 0;
  IoResult result = n > 0 ? lane->stream.receive(parts, n, &got) : IoResult::kBlocked;
  if (result != IoResult::kMoved && result != IoResult::kBlocked) {
    lane_failed(lane, result, op, "receive");
    *blocked = true;
    return false;
  }
  op->record.bytes_received += got;
  op->comm->counters.bytes_received += got;
  size_t header_part = std::min(got, header_left);
  if (header_part > 0) {
    lane->header_moved += header_part;
    if (lane->header_moved == sizeof(WireHeader) && !take_header(lane, op)) {
      *blocked = true;
      return true;
    }
  }
  size_t body = got - header_part;
  *budget -= std::min(*budget, body);
  uint64_t before = state.done;
  if (direct) {
    state.bytes += body;
    state.done = state.bytes / wire_size;
  } else {
    lane->scratch_end += body;
    uint64_t ready = std::min<uint64_t>(lane->scratch_end / wire_size, limit - state.done);
    if (ready > 0) {
      apply_receive(op, index, lane->scratch.get(), state.done, ready);
      size_t used = ready * wire_size;
      lane->scratch_end -= used;
      if (lane->scratch_end > 0) {
        std::memmove(lane->scratch.get(), lane->scratch.get() + used, lane->scratch_end);
      }
      state.done += ready;
      state.bytes += used;
    }
  }
  if (result == IoResult::kBlocked && n > 0) {
    // The fingerprint is read as soon as it comes: what the peer sends may be less than we hope.
    size_t held = direct ? 0 : lane->scratch_end;
    lane->stream.expect(header_left > header_part ? 1 : step_bytes - state.bytes - held);
  }
  bool progressed = got > 0 || state.done > before;
  if (state.done > before && op->pieces.size() > 0) after_progress(op);
  *blocked = !progressed;
  return progressed;
}

bool Engine::take_header(Lane* lane, Op* op) {
  WireHeader mine = header_of(op);
  if (std::memcmp(&mine, &lane->header, sizeof(mine)) == 0) return true;
  op->comm->fail_mismatch(lane->peer, lane->header, mine, op);
  return false;
}

void Engine::lane_failed(Lane* lane, IoResult result, const Op* op, const char* phase) {
  Comm& comm = *lane->comm;
  if (result == IoResult::kCorrupt) {
    comm.fail(MCCL_FAIL_CORRUPT, lane->peer, op, phase,
              "bytes arrived changed on the link to " + comm.name_of(comm.config.rank) +
                  ": a checksum does not match (memory, cable, switch or network card)");
  } else if (result == IoResult::kFailed) {
    comm.fail(MCCL_FAIL_PEER_DIED, lane->peer, op, phase,
              std::string("connection failed: ") + strerror(lane->stream.error()));
  }
  if (lane->closed_at == 0) lane->closed_at = now_us();
}

}  // namespace mccl
