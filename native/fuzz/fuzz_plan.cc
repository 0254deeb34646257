// Plans, and the collectives that run them: any steps that make_plan accepts are run on buffers of
// exactly the size it found, with the fuzzer's bytes from every peer behind a right or wrong
// fingerprint. No plan reads or writes beyond its buffers, whatever arrives.

#include <algorithm>
#include <memory>

#include "fingerprint.h"
#include "harness.h"
#include "types.h"

namespace {

constexpr uint64_t kMostElements = 4096;

mccl_step step_from(fuzz::Input* in, uint32_t n_buffers) {
  mccl_step step{};
  uint8_t kind = in->take<uint8_t>();
  uint8_t place = in->take<uint8_t>();
  step.kind = kind & 7;
  step.flags = kind >> 3 & 3;
  step.peer = step.kind >= MCCL_STEP_COPY ? -1 : 1 + (place & 1);
  step.dst_buffer = (place >> 1 & 3) % (n_buffers + ((kind & 128) != 0));
  step.src_buffer = (place >> 3 & 3) % (n_buffers + ((kind & 128) != 0));
  step.dst_offset = in->take<uint8_t>();
  step.src_offset = in->take<uint8_t>();
  step.count = in->take<uint8_t>();
  if (kind & 32) step.peer = in->take<int32_t>();
  if (kind & 64) (place & 128 ? step.count : step.dst_offset) = in->take<uint64_t>();
  return step;
}

struct Parts {
  uint32_t n_external = 0;
  std::vector<mccl_scratch> scratch;
  std::vector<mccl_step> steps;
  std::vector<mccl_dep> deps;
};

Parts parts_from(fuzz::Input* in) {
  Parts parts;
  uint8_t shape = in->take<uint8_t>();
  parts.n_external = 1 + (shape & 1);
  parts.scratch.resize(shape >> 1 & 1);
  for (mccl_scratch& scratch : parts.scratch) {
    scratch.count = shape & 128 ? in->take<uint64_t>() : in->take<uint16_t>();
    scratch.accumulate = shape >> 2 & 1;
  }
  uint32_t n_buffers = parts.n_external + static_cast<uint32_t>(parts.scratch.size());
  parts.steps.resize((shape >> 3 & 7) + 1u);
  for (uint32_t i = 0; i < parts.steps.size(); ++i) {
    mccl_step& step = parts.steps[i] = step_from(in, n_buffers);
    step.first_dep = static_cast<uint32_t>(parts.deps.size());
    uint8_t deps = in->take<uint8_t>();
    step.n_deps = deps & 3;
    for (uint32_t d = 0; d < step.n_deps; ++d) {
      uint8_t dep = in->take<uint8_t>();
      parts.deps.push_back({i > 0 ? (dep >> 2) % (i + ((dep & 2) != 0)) : 0u, dep & 1u});
    }
    if (deps & 128) step.first_dep = in->take<uint32_t>();
    if (deps & 64) step.n_deps = in->take<uint32_t>();
  }
  return parts;
}

uint64_t total_elements(const mccl::Plan& plan) {
  uint64_t total = 0;
  for (const mccl::Extent& extent : plan.extents) {
    if (extent.count > kMostElements) return extent.count;
    total += extent.count;
  }
  for (const mccl_scratch& scratch : plan.scratch) {
    if (scratch.count > kMostElements) return scratch.count;
    total += scratch.count;
  }
  return total;
}

void run(fuzz::Input* in, mccl_plan* plan) {
  static const uint32_t dtypes[] = {MCCL_F32, MCCL_F16, MCCL_BF16, MCCL_U8, MCCL_I64, MCCL_BOOL};
  uint8_t flags = in->take<uint8_t>();
  uint8_t how = in->take<uint8_t>();
  mccl_comm_config config = fuzz::config(0, 3);
  config.checksum = flags & 1;
  auto* handle = new mccl_comm{std::make_shared<mccl::Comm>(config)};
  mccl_op_desc desc{};
  desc.collective = MCCL_ALL_REDUCE;
  desc.dtype = dtypes[how % 6];
  desc.redop = flags & 2 ? static_cast<uint32_t>(how >> 4) % 9 : MCCL_SUM;
  desc.wire_dtype = flags & 4 ? dtypes[(how >> 3) % 6] : desc.dtype;
  desc.root = -1;
  desc.count = 100;
  desc.plan = plan;
  desc.premul = 2.0;
  desc.timeout_us = -1;
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<void*> buffers;
  for (const mccl::Extent& extent : plan->plan->extents) {
    size_t bytes = extent.count * mccl::dtype_size(desc.dtype);
    memory.push_back(std::make_unique<char[]>(bytes));
    buffers.push_back(memory.back().get());
  }
  desc.buffers = buffers.data();
  std::vector<mccl_op*> ops;
  for (int i = flags & 8 ? 2 : 1; i > 0; --i) {
    mccl_op* op = nullptr;
    if (mccl_submit(handle, &desc, &op) == MCCL_OK) ops.push_back(op);
  }
  fuzz::Wire wires[4];
  for (int i = 0; i < 4; ++i) {
    fuzz::Wire& wire = wires[i];
    bool incoming = i < 2;
    wire.takes = (flags & 16) == 0;
    wire.incoming = incoming;
    wire.pattern = in->take<uint32_t>() | 1;
    wire.end = static_cast<fuzz::WireEnd>(incoming ? in->take<uint8_t>() % 3 : 0);
    if (incoming && (flags & 32) == 0) {
      mccl::WireHeader header{mccl::kWireMagic, MCCL_ALL_REDUCE, 0, 0, 0, -1, 0, 7, 1, 100};
      header.dtype = static_cast<uint8_t>(desc.dtype);
      header.redop = static_cast<uint8_t>(desc.redop);
      header.wire_dtype = static_cast<uint8_t>(desc.wire_dtype);
      wire.bytes.assign(reinterpret_cast<const char*>(&header), sizeof(header));
    }
    if (incoming) wire.bytes += in->bytes(i == 0 ? in->left() / 2 : in->left());
    // The fuzzer writes a byte where a tensor has many.
    if (incoming && (flags & 64) != 0) wire.bytes.resize(wire.bytes.size() + 4096);
    int32_t fd = fuzz::open_wire(&wire);
    mccl_comm_add_link(handle, 1 + (i & 1), incoming ? MCCL_COLLECTIVE_RX : MCCL_COLLECTIVE_TX,
                       &fd, 1);
  }
  fuzz::drive(handle->comm.get());
  fuzz::finish(handle, &ops);
  fuzz::forget_wires();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input in(data, size);
  fuzz::engine();
  Parts parts = parts_from(&in);
  mccl_plan* plan = mccl_plan_create(
      3, 0, parts.n_external, parts.scratch.data(), static_cast<uint32_t>(parts.scratch.size()),
      parts.steps.data(), static_cast<uint32_t>(parts.steps.size()), parts.deps.data(),
      static_cast<uint32_t>(parts.deps.size()));
  if (plan == nullptr) return 0;
  fuzz::require(total_elements(*plan->plan) <= uint64_t{1} << 61,
                "a plan is accepted whose bytes do not fit into 64 bits");
  if (total_elements(*plan->plan) <= kMostElements) run(&in, plan);
  mccl_plan_destroy(plan);
  return 0;
}
