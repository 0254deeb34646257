// The C interface of mccl.h over the engine. Kernels are in kernels_api.cc.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "comm.h"
#include "engine.h"
#include "plan.h"
#include "reduce.h"
#include "types.h"
#include "util.h"

using mccl::Comm;
using mccl::Engine;
using mccl::Op;

namespace {

int invalid(const std::string& text) {
  mccl::set_last_error(text);
  return MCCL_INVALID;
}

Op* unwrap(mccl_op* op) { return reinterpret_cast<Op*>(op); }
mccl_op* wrap(Op* op) { return reinterpret_cast<mccl_op*>(op); }

int usable(mccl_comm* handle, Engine** engine) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  *engine = Engine::get();
  if (*engine == nullptr) return MCCL_FORKED;
  return handle->comm->broken ? MCCL_BROKEN : MCCL_OK;
}

void describe(Op* op, uint64_t count) {
  constexpr int64_t kForeverUs = int64_t{1} << 60;  // and no overflow when added to a clock
  if (op->timeout_us < 0 || op->timeout_us > kForeverUs) op->timeout_us = kForeverUs;
  op->submitted = mccl::now_us();
  mccl_record& record = op->record;
  record.collective = op->collective;
  record.dtype = op->dtype;
  record.redop = op->redop;
  record.root = op->root;
  record.count = count;
  record.tag = op->tag;
  record.waiting_for = -1;
  record.submitted_us = mccl::wall_us();
}

// Whether the engine has a kernel for every combination the plan asks for.
bool reducible(const mccl::Plan& plan, const mccl_op_desc& desc) {
  const uint32_t dtypes[2] = {desc.dtype, mccl::accumulate_dtype(desc.dtype)};
  auto missing = [&](uint32_t dst, uint32_t src) {
    return mccl::find_reduce(dst, src, desc.redop) == nullptr;
  };
  for (int dst = 0; dst < 2; ++dst) {
    if (plan.reduces[dst] && missing(dtypes[dst], desc.wire_dtype)) return false;
    for (int src = 0; src < 2; ++src) {
      if (plan.combines[dst][src] && missing(dtypes[dst], dtypes[src])) return false;
    }
  }
  return true;
}

std::string check_desc(const Comm& comm, const mccl_op_desc& desc) {
  if (desc.plan == nullptr) return "no plan";
  const mccl::Plan& plan = *desc.plan->plan;
  if (plan.world != comm.config.size || plan.rank != comm.config.rank) {
    return "the plan is for rank " + std::to_string(plan.rank) + " of " +
           std::to_string(plan.world) + ", the communicator is rank " +
           std::to_string(comm.config.rank) + " of " + std::to_string(comm.config.size);
  }
  if (mccl::dtype_size(desc.dtype) == 0) return "unknown dtype";
  if (mccl::find_convert(desc.wire_dtype, desc.dtype) == nullptr) {
    return std::string("cannot send ") + mccl::dtype_name(desc.dtype) + " as " +
           mccl::dtype_name(desc.wire_dtype);
  }
  if (desc.redop != MCCL_NO_REDOP &&
      mccl::find_reduce(desc.dtype, desc.dtype, desc.redop) == nullptr) {
    return std::string(mccl::redop_name(desc.redop)) + " is not supported for " +
           mccl::dtype_name(desc.dtype);
  }
  if (!reducible(plan, desc)) {
    return desc.redop == MCCL_NO_REDOP
               ? std::string("the plan reduces, but the call names no reduce operation")
               : std::string("the plan would reduce ") + mccl::dtype_name(desc.wire_dtype) +
                     " from the wire into " + mccl::dtype_name(desc.dtype) +
                     ", which the engine has no kernel for";
  }
  if (desc.redop == MCCL_PREMUL_SUM && !mccl::scale_factor_ok(desc.dtype, desc.premul)) {
    return "PREMUL_SUM of an integer dtype needs a whole factor";
  }
  for (uint32_t i = 0; i < plan.n_external; ++i) {
    if (plan.extents[i].count > 0 && desc.buffers[i] == nullptr) {
      return "buffer " + std::to_string(i) + " is NULL";
    }
  }
  return {};
}

void take_tickets(Op* op, const mccl_ticket* produced, const mccl_ticket* consumed,
                  uint64_t produced_value, uint64_t consumed_value) {
  if (produced != nullptr) op->produced = *produced;
  if (consumed != nullptr) op->consumed = *consumed;
  op->produced_value = produced_value;
  op->consumed_value = consumed_value;
}

// Hands the operation over. Without an out pointer a synchronous caller insists on completion.
int launch(Engine* engine, Op* op, bool sync, mccl_op** out) {
  op->retain();  // the queue's reference may be gone before submit returns
  bool finished = engine->submit(op, sync);
  if (!sync) {
    if (out != nullptr) {
      *out = wrap(op);
    } else {
      op->release();
    }
    return MCCL_OK;
  }
  int status = MCCL_OK;
  if (!finished && out != nullptr) {
    *out = wrap(op);
    return MCCL_PENDING;
  }
  if (!finished) {
    status = engine->wait(op, -1);
  } else if (op->load_state() == mccl::OpState::kFailed) {
    status = MCCL_BROKEN;
  }
  op->release();
  return status;
}

uint64_t read_word(void* context) {
  return std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(context)).load(std::memory_order_acquire);
}
void raise_word(void* context, uint64_t value) {
  std::atomic_ref<uint64_t> word(*static_cast<uint64_t*>(context));
  if (word.load(std::memory_order_relaxed) < value) word.store(value, std::memory_order_release);
}

}  // namespace

extern "C" {

mccl_plan* mccl_plan_create(int32_t world, int32_t rank, uint32_t n_external,
                            const mccl_scratch* scratch, uint32_t n_scratch,
                            const mccl_step* steps, uint32_t n_steps, const mccl_dep* deps,
                            uint32_t n_deps) {
  auto plan = mccl::make_plan(world, rank, n_external, scratch, n_scratch, steps, n_steps, deps,
                              n_deps);
  return plan ? new mccl_plan{std::move(plan)} : nullptr;
}

void mccl_plan_destroy(mccl_plan* plan) { delete plan; }

mccl_comm* mccl_comm_create(const mccl_comm_config* config) {
  if (config->size < 1 || config->rank < 0 || config->rank >= config->size) {
    invalid("rank " + std::to_string(config->rank) + " of size " + std::to_string(config->size));
    return nullptr;
  }
  if (config->peer_timeout_us <= 0) {
    invalid("peer_timeout_us must be positive");
    return nullptr;
  }
  if (Engine::get() == nullptr) return nullptr;
  mccl_comm_config copy = *config;
  copy.name[sizeof(copy.name) - 1] = 0;
  return new mccl_comm{std::make_shared<Comm>(copy)};
}

int mccl_comm_set_peer_label(mccl_comm* handle, int32_t peer, const char* label) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  Comm& comm = *handle->comm;
  if (peer < 0 || peer >= comm.config.size) return invalid("no such peer");
  std::lock_guard<std::mutex> lock(comm.error_mutex);
  comm.peers[static_cast<size_t>(peer)]->label = label;
  return MCCL_OK;
}

int mccl_comm_add_link(mccl_comm* handle, int32_t peer, uint32_t channel, const int32_t* fds,
                       uint32_t n_fds) {
  Engine* engine = nullptr;
  int status = usable(handle, &engine);
  bool sane = status == MCCL_OK && peer >= 0 && peer < handle->comm->config.size &&
              peer != handle->comm->config.rank && channel <= MCCL_CONTROL && n_fds > 0 &&
              (channel != MCCL_CONTROL || n_fds == 1);
  if (!sane) {
    for (uint32_t i = 0; i < n_fds; ++i) close(fds[i]);
    return status != MCCL_OK ? status : invalid("no such peer or channel");
  }
  handle->comm->peers[static_cast<size_t>(peer)]->linked[channel] = true;
  if (channel == MCCL_CONTROL) {
    engine->control().add(handle->comm, peer, fds[0]);
  } else {
    engine->post({mccl::Request::kLink, handle->comm, nullptr, peer, channel,
                  std::vector<int32_t>(fds, fds + n_fds)});
  }
  return MCCL_OK;
}

int mccl_comm_has_link(mccl_comm* handle, int32_t peer, uint32_t channel) {
  if (handle == nullptr || peer < 0 || peer >= handle->comm->config.size || channel > MCCL_CONTROL) {
    return 0;
  }
  return handle->comm->peers[static_cast<size_t>(peer)]->linked[channel];
}

void mccl_word_ticket(volatile uint64_t* word, mccl_ticket* out) {
  *out = {read_word, raise_word, const_cast<uint64_t*>(word)};
}

int mccl_submit(mccl_comm* handle, const mccl_op_desc* desc, mccl_op** out) {
  if (out != nullptr) *out = nullptr;
  Engine* engine = nullptr;
  if (int status = usable(handle, &engine); status != MCCL_OK) return status;
  std::string wrong = check_desc(*handle->comm, *desc);
  if (!wrong.empty()) return invalid(wrong);
  auto* op = new Op;
  op->comm = handle->comm;
  op->collective = desc->collective;
  op->dtype = desc->dtype;
  op->redop = desc->redop;
  op->wire_dtype = desc->wire_dtype;
  op->root = desc->root;
  op->count = desc->count;
  op->premul = desc->premul;
  op->tag = desc->tag;
  op->timeout_us = desc->timeout_us;
  op->plan = desc->plan->plan;
  op->buffers.reserve(op->plan->n_external + op->plan->scratch.size());
  for (uint32_t i = 0; i < op->plan->n_external; ++i) {
    op->buffers.push_back(static_cast<char*>(desc->buffers[i]));
  }
  take_tickets(op, desc->produced, desc->consumed, desc->produced_value, desc->consumed_value);
  op->pieces.assign(desc->pieces, desc->pieces + desc->n_pieces);
  describe(op, desc->count);
  return launch(engine, op, (desc->flags & MCCL_OP_SYNC) != 0, out);
}

int mccl_p2p(mccl_comm* handle, const mccl_p2p_desc* desc, mccl_op** out) {
  if (out != nullptr) *out = nullptr;
  Engine* engine = nullptr;
  if (int status = usable(handle, &engine); status != MCCL_OK) return status;
  const Comm& comm = *handle->comm;
  bool any = desc->send == 0 && desc->peer < 0;
  if (!any && (desc->peer < 0 || desc->peer >= comm.config.size || desc->peer == comm.config.rank)) {
    return invalid("peer " + std::to_string(desc->peer) + " of a message must be another rank in [0, " +
                   std::to_string(comm.config.size) + ")");
  }
  auto* op = new Op;
  op->comm = handle->comm;
  op->collective = desc->send != 0 ? MCCL_SEND : MCCL_RECV;
  op->dtype = desc->dtype;
  op->peer = any ? -1 : desc->peer;
  op->root = op->peer;
  op->buffer = static_cast<char*>(desc->buffer);
  op->bytes = desc->bytes;
  op->tag = desc->tag;
  op->timeout_us = desc->timeout_us;
  take_tickets(op, desc->produced, desc->consumed, desc->produced_value, desc->consumed_value);
  describe(op, desc->bytes);
  return launch(engine, op, (desc->flags & MCCL_OP_SYNC) != 0, out);
}

int mccl_op_wait(mccl_op* handle, int64_t timeout_us) {
  Engine* engine = Engine::get();
  return engine != nullptr ? engine->wait(unwrap(handle), timeout_us) : MCCL_FORKED;
}

int mccl_op_test(mccl_op* handle) {
  Op* op = unwrap(handle);
  if (!op->finished()) return MCCL_PENDING;
  return op->load_state() == mccl::OpState::kDone ? MCCL_OK : MCCL_BROKEN;
}

int mccl_op_get_info(mccl_op* handle, mccl_op_info* out) {
  Op* op = unwrap(handle);
  *out = {};
  out->sequence = op->sequence;
  out->source = op->source;
  out->status = static_cast<uint32_t>(mccl_op_test(handle));
  out->submitted_us = op->record.submitted_us;
  if (op->finished()) {  // until then the driver writes these
    out->started_us = op->record.started_us;
    out->completed_us = op->record.completed_us;
  }
  return MCCL_OK;
}

void mccl_op_release(mccl_op* handle) {
  // A forked child may find the pool's lock taken by a thread that it does not have.
  if (handle != nullptr && Engine::get() != nullptr) unwrap(handle)->release();
}

uint64_t mccl_wait_completion(uint64_t cursor, int64_t timeout_us) {
  Engine* engine = Engine::get();
  return engine != nullptr ? engine->wait_completion(cursor, timeout_us) : cursor;
}

int mccl_comm_error(mccl_comm* handle, mccl_error* out) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  std::lock_guard<std::mutex> lock(handle->comm->error_mutex);
  if (!handle->comm->broken) return MCCL_OK;
  *out = handle->comm->first_error;
  return MCCL_BROKEN;
}

int mccl_comm_abort(mccl_comm* handle, const char* reason) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  handle->comm->fail(MCCL_FAIL_ABORTED, handle->comm->config.rank, nullptr, "idle", reason);
  return MCCL_OK;
}

int mccl_comm_fail(mccl_comm* handle, const mccl_error* error) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  handle->comm->fail(*error);
  return MCCL_OK;
}

void mccl_comm_destroy(mccl_comm* handle) {
  if (handle == nullptr) return;
  Engine* engine = Engine::get();
  if (engine == nullptr) return;  // forked child: the sockets and the event queue are the parent's
  engine->control().goodbye(handle->comm.get());
  engine->close(handle->comm);
  delete handle;
}

const char* mccl_last_error(void) { return mccl::last_error(); }

int mccl_comm_get_stats(mccl_comm* handle, mccl_stats* out) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  const mccl::Counters& c = handle->comm->counters;
  *out = {c.operations,  c.failed,      c.bytes_sent,      c.bytes_received,
          c.bytes_reduced, c.parked_bytes, c.parked_peak,   c.busy_us,
          c.blocked_send_us, c.blocked_receive_us, c.blocked_ticket_us, c.reduce_us};
  return MCCL_OK;
}

int mccl_comm_reset_stats(mccl_comm* handle) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  mccl::Counters& c = handle->comm->counters;
  for (auto* counter : {&c.operations, &c.failed, &c.bytes_sent, &c.bytes_received,
                        &c.bytes_reduced}) {
    counter->store(0);
  }
  c.parked_peak.store(c.parked_bytes);
  for (auto* counter : {&c.busy_us, &c.blocked_send_us, &c.blocked_receive_us,
                        &c.blocked_ticket_us, &c.reduce_us}) {
    counter->store(0);
  }
  return MCCL_OK;
}

uint32_t mccl_comm_get_records(mccl_comm* handle, mccl_record* out, uint32_t capacity) {
  return handle != nullptr ? handle->comm->recorder.copy(out, capacity) : 0;
}

int mccl_comm_get_peer(mccl_comm* handle, int32_t peer, mccl_peer_state* out) {
  if (handle == nullptr) return invalid("the communicator was destroyed");
  if (peer < 0 || peer >= handle->comm->config.size) return invalid("no such peer");
  const mccl::PeerInfo& info = *handle->comm->peers[static_cast<size_t>(peer)];
  *out = {};
  out->peer = peer;
  out->connected = info.controls > 0;
  out->silent_us = info.last_heard == 0 ? 0 : mccl::now_us() - info.last_heard;
  out->issued = info.issued;
  out->completed = info.completed;
  out->collective = info.collective;
  return MCCL_OK;
}

}  // extern "C"
