#include "plan.h"

#include <algorithm>
#include <string>

#include "util.h"

namespace mccl {

namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 59;  // of 16 bytes: 2^63 bytes

std::string check_region(const Plan& plan, uint32_t buffer, uint64_t offset, uint64_t count) {
  if (buffer >= plan.n_external + plan.scratch.size()) {
    return "names buffer " + std::to_string(buffer) + " of " +
           std::to_string(plan.n_external + plan.scratch.size());
  }
  if (count > kMostElements || offset > kMostElements - count) return "region overflows";
  if (buffer >= plan.n_external && offset + count > plan.scratch[buffer - plan.n_external].count) {
    return "reaches beyond scratch buffer " + std::to_string(buffer);
  }
  return {};
}

std::string check_step(const Plan& plan, uint32_t index) {
  const mccl_step& step = plan.steps[index];
  if (step.kind > MCCL_STEP_REDUCE) return "has unknown kind " + std::to_string(step.kind);
  if (step.kind == MCCL_STEP_RECV && (step.flags & MCCL_STEP_FINAL)) {
    return "is a RECV marked final; the sender finishes what it sends";
  }
  if (step.count == 0) return "moves nothing; leave it out on both sides";
  bool remote = !is_local(step);
  if (remote && (step.peer < 0 || step.peer >= plan.world || step.peer == plan.rank)) {
    return "has peer " + std::to_string(step.peer);
  }
  if (uint64_t{step.first_dep} + step.n_deps > plan.deps.size()) return "has deps out of range";
  for (uint32_t d = step.first_dep; d < step.first_dep + step.n_deps; ++d) {
    const mccl_dep& dep = plan.deps[d];
    if (dep.kind > MCCL_DEP_FULL) return "has a dep of unknown kind " + std::to_string(dep.kind);
    if (dep.step >= index) return "waits for step " + std::to_string(dep.step) + ", not an earlier one";
    if (dep.kind == MCCL_DEP_STREAM && plan.steps[dep.step].count != step.count) {
      return "streams behind step " + std::to_string(dep.step) + " of another count";
    }
  }
  std::string wrong;
  if (has_dst(step)) wrong = check_region(plan, step.dst_buffer, step.dst_offset, step.count);
  if (wrong.empty() && has_src(step)) {
    wrong = check_region(plan, step.src_buffer, step.src_offset, step.count);
  }
  return wrong;
}

void note_extent(Plan* plan, uint32_t buffer, uint64_t end, bool written) {
  if (buffer >= plan->n_external) return;
  Extent& extent = plan->extents[buffer];
  extent.count = std::max(extent.count, end);
  extent.written = extent.written || written;
}

}  // namespace

std::shared_ptr<const Plan> make_plan(int32_t world, int32_t rank, uint32_t n_external,
                                      const mccl_scratch* scratch, uint32_t n_scratch,
                                      const mccl_step* steps, uint32_t n_steps,
                                      const mccl_dep* deps, uint32_t n_deps) {
  auto plan = std::make_shared<Plan>();
  if (world < 1 || rank < 0 || rank >= world) {
    set_last_error("rank " + std::to_string(rank) + " of world " + std::to_string(world));
    return nullptr;
  }
  plan->world = world;
  plan->rank = rank;
  plan->n_external = n_external;
  plan->scratch.assign(scratch, scratch + n_scratch);
  plan->steps.assign(steps, steps + n_steps);
  plan->deps.assign(deps, deps + n_deps);
  plan->extents.resize(n_external);
  plan->first.resize(n_steps);
  for (const mccl_scratch& buffer : plan->scratch) {
    if (buffer.count <= kMostElements) continue;
    set_last_error("a scratch buffer of " + std::to_string(buffer.count) + " elements");
    return nullptr;
  }
  std::vector<uint8_t> opened_tx(static_cast<size_t>(world));
  std::vector<uint8_t> opened_rx(static_cast<size_t>(world));
  for (uint32_t i = 0; i < n_steps; ++i) {
    std::string wrong = check_step(*plan, i);
    if (!wrong.empty()) {
      set_last_error("step " + std::to_string(i) + " " + wrong);
      return nullptr;
    }
    const mccl_step& step = plan->steps[i];
    if (has_dst(step)) note_extent(plan.get(), step.dst_buffer, step.dst_offset + step.count, true);
    if (has_src(step)) note_extent(plan.get(), step.src_buffer, step.src_offset + step.count, false);
    if (step.kind == MCCL_STEP_RECV_REDUCE) plan->reduces[plan->accumulates(step.dst_buffer)] = true;
    if (step.kind == MCCL_STEP_REDUCE) {
      plan->combines[plan->accumulates(step.dst_buffer)][plan->accumulates(step.src_buffer)] = true;
    }
    if (is_local(step)) {
      plan->locals.push_back(i);
    } else {
      auto& opened = (is_send(step) ? opened_tx : opened_rx)[static_cast<size_t>(step.peer)];
      plan->first[i] = !opened;
      opened = 1;
    }
  }
  return plan;
}

}  // namespace mccl
