// A plan as the engine keeps it: checked once, then only read.
#ifndef MCCL_SRC_PLAN_H
#define MCCL_SRC_PLAN_H

#include <cstdint>
#include <memory>
#include <vector>

#include "mccl.h"

namespace mccl {

struct Extent {
  uint64_t count = 0;  // elements any step touches
  bool written = false;
};

struct Plan {
  int32_t world = 0;
  int32_t rank = 0;
  uint32_t n_external = 0;
  std::vector<mccl_scratch> scratch;
  std::vector<mccl_step> steps;
  std::vector<mccl_dep> deps;
  std::vector<Extent> extents;    // of external buffers
  std::vector<uint32_t> locals;   // COPY and REDUCE steps
  std::vector<uint8_t> first;     // step i opens its connection: the fingerprint goes before it
  bool reduces[2] = {};           // a RECV_REDUCE into [accumulator?]
  bool combines[2][2] = {};       // a REDUCE into [accumulator?] of [accumulator?]

  bool accumulates(uint32_t buffer) const {
    return buffer >= n_external && scratch[buffer - n_external].accumulate != 0;
  }
};

inline bool is_send(const mccl_step& step) { return step.kind == MCCL_STEP_SEND; }
inline bool is_receive(const mccl_step& step) {
  return step.kind == MCCL_STEP_RECV || step.kind == MCCL_STEP_RECV_REDUCE;
}
inline bool is_local(const mccl_step& step) {
  return step.kind == MCCL_STEP_COPY || step.kind == MCCL_STEP_REDUCE;
}
inline bool has_dst(const mccl_step& step) { return step.kind != MCCL_STEP_SEND; }
inline bool has_src(const mccl_step& step) { return step.kind != MCCL_STEP_RECV; }

// nullptr with the thread's last error set when the parts are inconsistent.
std::shared_ptr<const Plan> make_plan(int32_t world, int32_t rank, uint32_t n_external,
                                      const mccl_scratch* scratch, uint32_t n_scratch,
                                      const mccl_step* steps, uint32_t n_steps,
                                      const mccl_dep* deps, uint32_t n_deps);

}  // namespace mccl

struct mccl_plan {
  std::shared_ptr<const mccl::Plan> plan;
};

#endif  // MCCL_SRC_PLAN_H
