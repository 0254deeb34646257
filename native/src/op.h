// An operation: one collective or one point-to-point message, from submission to its end.
#ifndef MCCL_SRC_OP_H
#define MCCL_SRC_OP_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "mccl.h"
#include "plan.h"
#include "scratch.h"

namespace mccl {

struct Comm;

enum class OpState : int { kQueued = 0, kRunning = 1, kDone = 2, kFailed = 3 };

struct StepState {
  uint64_t done = 0;   // elements moved and, where the step reduces, reduced
  uint64_t bytes = 0;  // wire bytes moved
};

// Written by the driver (engine.h) once submitted, except where marked.
struct Op {
  std::atomic<int> refs{1};
  std::atomic<int> state{static_cast<int>(OpState::kQueued)};  // read by waiters
  std::shared_ptr<Comm> comm;

  uint32_t collective = 0;
  uint32_t dtype = 0;
  uint32_t redop = MCCL_NO_REDOP;
  uint32_t wire_dtype = 0;
  int32_t root = -1;
  uint64_t count = 0;
  double premul = 1.0;
  uint64_t tag = 0;
  uint64_t sequence = 0;
  int64_t timeout_us = 0;
  int64_t submitted = 0;  // monotonic
  mccl_record record{};   // wall-clock times and counters
  uint64_t record_number = 0;

  // Handoff.
  mccl_ticket produced{};
  mccl_ticket consumed{};
  uint64_t produced_value = 0;
  uint64_t consumed_value = 0;
  std::vector<mccl_piece> pieces;
  size_t pieces_consumed = 0;
  uint64_t produced_seen = 0;

  // Collective.
  std::shared_ptr<const Plan> plan;
  std::vector<char*> buffers;  // external, then scratch
  std::vector<ScratchBlock> blocks;
  std::vector<StepState> steps;
  std::vector<uint32_t> locals;  // not complete yet
  uint32_t remaining = 0;        // steps
  uint32_t headers_due = 0;      // fingerprints not yet sent or read
  bool ready = false;            // may touch the caller's memory
  uint32_t blockers = 0;         // earlier operations on the same memory
  std::vector<Op*> dependents;

  // Message.
  int32_t peer = -1;
  char* buffer = nullptr;
  uint64_t bytes = 0;
  uint64_t moved = 0;
  std::atomic<int32_t> source{-1};  // read by the receiver's thread

  OpState load_state() const { return static_cast<OpState>(state.load(std::memory_order_acquire)); }
  bool finished() const { return load_state() >= OpState::kDone; }
  bool is_message() const { return collective == MCCL_SEND || collective == MCCL_RECV; }

  uint32_t buffer_dtype(uint32_t index) const;
  bool step_done(uint32_t index) const { return steps[index].done == plan->steps[index].count; }
  // Elements of step `index` that its dependencies and the producer's ticket let move.
  uint64_t limit(uint32_t index);
  // Elements from `offset` on that the GPU has finished writing.
  uint64_t produced_limit(uint64_t offset, uint64_t count);
  bool piece_consumed(const mccl_piece& piece) const;

  void retain() { refs.fetch_add(1, std::memory_order_relaxed); }
  void release();
};

// All-or-nothing copies of what steps compute; see executor.cc.
void apply_receive(Op* op, uint32_t index, const char* incoming, uint64_t first, uint64_t n);
// Runs up to `most` elements of a local step; true when something moved.
bool advance_local(Op* op, uint32_t index, uint64_t most);
// PREMUL_SUM: every rank's own contribution is scaled before anything reads it.
void prescale(Op* op);

}  // namespace mccl

struct mccl_op;  // opaque outside: an mccl::Op

#endif  // MCCL_SRC_OP_H
