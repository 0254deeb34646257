// What the steps of a plan do to memory. Who may call when is the driver's business.

#include <algorithm>
#include <cstring>

#include "comm.h"
#include "op.h"
#include "reduce.h"
#include "stream.h"
#include "types.h"
#include "util.h"

namespace mccl {

namespace {

char* at(const Op* op, uint32_t buffer, uint64_t offset) {
  return op->buffers[buffer] + offset * dtype_size(op->buffer_dtype(buffer));
}

// The value just written is the collective's result: AVG divides here, once, and a reduced
// wire dtype rounds here, so that the owner keeps what the others will receive.
void finish(Op* op, uint32_t dtype, char* dst, uint64_t n) {
  if (op->redop == MCCL_AVG) {
    if (DivideFn divide = find_divide(dtype)) {
      divide(dst, dst, n, static_cast<uint32_t>(op->plan->world));
    }
  }
  if (op->wire_dtype != op->dtype) {
    if (UnaryFn round = find_round(dtype, op->wire_dtype)) round(dst, dst, n);
  }
}

void copy_final(Op* op, const mccl_step& step, uint64_t first, uint64_t n) {
  uint32_t src_dtype = op->buffer_dtype(step.src_buffer);
  uint32_t dst_dtype = op->buffer_dtype(step.dst_buffer);
  const char* src = at(op, step.src_buffer, step.src_offset + first);
  char* dst = at(op, step.dst_buffer, step.dst_offset + first);
  if (src_dtype == dst_dtype) {
    if (dst != src) std::memmove(dst, src, n * dtype_size(dst_dtype));
    if (step.flags & MCCL_STEP_FINAL) finish(op, dst_dtype, dst, n);
    return;
  }
  // Out of an accumulator: divide before the one rounding to the narrow type.
  UnaryFn convert = find_convert(dst_dtype, src_dtype);
  if (!(step.flags & MCCL_STEP_FINAL)) {
    convert(dst, src, n);
    return;
  }
  constexpr uint64_t kChunk = 4096;
  alignas(64) char temporary[kChunk * 8];
  for (uint64_t begin = 0; begin < n; begin += kChunk) {
    uint64_t m = std::min(kChunk, n - begin);
    std::memcpy(temporary, src + begin * dtype_size(src_dtype), m * dtype_size(src_dtype));
    finish(op, src_dtype, temporary, m);
    convert(dst + begin * dtype_size(dst_dtype), temporary, m);
  }
}

void reduce_local(Op* op, const mccl_step& step, uint64_t first, uint64_t n) {
  uint32_t dst_dtype = op->buffer_dtype(step.dst_buffer);
  uint32_t src_dtype = op->buffer_dtype(step.src_buffer);
  char* dst = at(op, step.dst_buffer, step.dst_offset + first);
  const char* src = at(op, step.src_buffer, step.src_offset + first);
  bool swapped = (step.flags & MCCL_STEP_INCOMING_FIRST) != 0;
  BinaryFn combine = swapped ? find_reduce_swapped(dst_dtype, src_dtype, op->redop)
                             : find_reduce(dst_dtype, src_dtype, op->redop);
  combine(dst, dst, src, n);
  if (step.flags & MCCL_STEP_FINAL) finish(op, dst_dtype, dst, n);
}

}  // namespace

uint32_t Op::buffer_dtype(uint32_t index) const {
  return plan->accumulates(index) ? accumulate_dtype(dtype) : dtype;
}

uint64_t Op::limit(uint32_t index) {
  const mccl_step& step = plan->steps[index];
  uint64_t most = step.count;
  for (uint32_t d = step.first_dep; d < step.first_dep + step.n_deps; ++d) {
    const mccl_dep& dep = plan->deps[d];
    if (dep.kind == MCCL_DEP_STREAM) {
      most = std::min(most, steps[dep.step].done);
    } else if (!step_done(dep.step)) {
      return 0;
    }
  }
  // O1 piece by piece: neither read nor overwrite what the GPU is still writing.
  if (!pieces.empty() && most > steps[index].done) {
    if (has_src(step) && step.src_buffer == 0) {
      most = std::min(most, produced_limit(step.src_offset, most));
    }
    if (has_dst(step) && step.dst_buffer < plan->n_external && buffers[step.dst_buffer] == buffers[0]) {
      most = std::min(most, produced_limit(step.dst_offset, most));
    }
  }
  return most;
}

uint64_t Op::produced_limit(uint64_t offset, uint64_t n) {
  uint64_t reached = offset;
  uint64_t end = offset + n;
  for (bool grew = true; grew && reached < end;) {
    grew = false;
    for (const mccl_piece& piece : pieces) {
      if (piece.offset > reached || piece.offset + piece.count <= reached) continue;
      if (produced_seen < piece.produced_value) produced_seen = produced.read(produced.context);
      if (produced_seen < piece.produced_value) continue;
      reached = piece.offset + piece.count;
      grew = true;
    }
  }
  return std::min(reached, end) - offset;
}

bool Op::piece_consumed(const mccl_piece& piece) const {
  uint32_t output = plan->n_external - 1;
  auto covered = [&](uint64_t region, uint64_t count, uint64_t done) {
    uint64_t begin = std::max(region, piece.offset);
    uint64_t end = std::min(region + count, piece.offset + piece.count);
    return begin >= end || region + done >= end;
  };
  for (uint32_t i = 0; i < plan->steps.size(); ++i) {
    const mccl_step& step = plan->steps[i];
    uint64_t done = steps[i].done;
    if (has_dst(step) && step.dst_buffer == output && !covered(step.dst_offset, step.count, done)) {
      return false;
    }
    if (has_src(step) && step.src_buffer == output && !covered(step.src_offset, step.count, done)) {
      return false;
    }
  }
  return true;
}

void apply_receive(Op* op, uint32_t index, const char* incoming, uint64_t first, uint64_t n) {
  const mccl_step& step = op->plan->steps[index];
  uint32_t dst_dtype = op->buffer_dtype(step.dst_buffer);
  char* dst = at(op, step.dst_buffer, step.dst_offset + first);
  if (step.kind == MCCL_STEP_RECV) {
    find_convert(dst_dtype, op->wire_dtype)(dst, incoming, n);
  } else {
    int64_t begun = now_us();
    const char* own = at(op, step.src_buffer, step.src_offset + first);
    uint32_t own_dtype = op->buffer_dtype(step.src_buffer);
    if (own_dtype != dst_dtype) {
      find_convert(dst_dtype, own_dtype)(dst, own, n);
      own = dst;
    }
    bool swapped = (step.flags & MCCL_STEP_INCOMING_FIRST) != 0;
    BinaryFn combine = swapped ? find_reduce_swapped(dst_dtype, op->wire_dtype, op->redop)
                               : find_reduce(dst_dtype, op->wire_dtype, op->redop);
    combine(dst, own, incoming, n);
    op->record.reduce_us += now_us() - begun;
    op->comm->counters.bytes_reduced += n * dtype_size(dst_dtype);
  }
  if (step.flags & MCCL_STEP_FINAL) finish(op, dst_dtype, dst, n);
}

bool advance_local(Op* op, uint32_t index, uint64_t most) {
  const mccl_step& step = op->plan->steps[index];
  StepState& state = op->steps[index];
  uint64_t limit = std::min(op->limit(index), state.done + most);
  if (limit <= state.done) return false;
  uint64_t n = limit - state.done;
  if (step.kind == MCCL_STEP_COPY) {
    copy_final(op, step, state.done, n);
  } else {
    reduce_local(op, step, state.done, n);
  }
  state.done = limit;
  return true;
}

void prescale(Op* op) {
  ScaleFn scale = find_scale(op->dtype);
  const Plan& plan = *op->plan;
  bool in_place = plan.n_external == 1 && plan.extents[0].written;
  if (in_place) {
    scale(op->buffers[0], op->buffers[0], plan.extents[0].count, op->premul);
    return;
  }
  // The last one is the output, except where a rank has none.
  uint32_t inputs = plan.n_external > 1 ? plan.n_external - 1 : plan.n_external;
  for (uint32_t i = 0; i < inputs; ++i) {
    uint64_t n = plan.extents[i].count;
    if (n == 0) continue;
    ScratchBlock block = scratch_pool().take(n * dtype_size(op->dtype));
    scale(block.memory.get(), op->buffers[i], n, op->premul);
    op->buffers[i] = block.memory.get();
    op->blocks.push_back(std::move(block));
  }
}

void Op::release() {
  if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    for (ScratchBlock& block : blocks) scratch_pool().give(std::move(block));
    delete this;
  }
}

}  // namespace mccl
