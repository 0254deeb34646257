// Handoff rules O1 and O2 at the engine's door: nothing is read before it was produced,
// consumed is raised in the order of the calls, also piece by piece.

#include <algorithm>
#include <chrono>
#include <memory>

#include "engine_ranks.h"

using namespace ranks;

namespace {

// A consumed counter that remembers what it was raised to.
struct Log {
  std::mutex mutex;
  std::vector<uint64_t> raised;
  mccl_ticket ticket() {
    return {nullptr,
            [](void* context, uint64_t value) {
              auto* log = static_cast<Log*>(context);
              std::lock_guard<std::mutex> lock(log->mutex);
              log->raised.push_back(value);
            },
            this};
  }
  std::vector<uint64_t> copy() {
    std::lock_guard<std::mutex> lock(mutex);
    return raised;
  }
};

// What a GPU does: works for a while, writes, signals.
struct Device {
  alignas(8) uint64_t word = 0;
  mccl_ticket ticket() {
    mccl_ticket out{};
    mccl_word_ticket(&word, &out);
    return out;
  }
  void signal(uint64_t value) {
    std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
  }
};

void nap(Random* random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random->below(1500)));
}

std::vector<uint64_t> one_to(uint64_t n) {
  std::vector<uint64_t> out(n);
  for (uint64_t i = 0; i < n; ++i) out[i] = i + 1;
  return out;
}

// A device thread fills bucket k, then signals k; all were issued before the first was filled.
void buckets_of_a_slow_device() {
  constexpr uint64_t kBuckets = 30;
  World comms(2);
  each_rank(2, [&](int rank) {
    Device device;
    Log log;
    mccl_ticket produced = device.ticket();
    mccl_ticket consumed = log.ticket();
    std::vector<std::vector<int64_t>> buckets(kBuckets);
    std::vector<mccl_op*> ops;
    for (uint64_t k = 0; k < kBuckets; ++k) {
      uint64_t count = 1 + (k * 7919) % 60000;
      buckets[k].assign(count, -1000000);
      mccl_plan* plan = k % 2 ? ring(2, rank, count) : doubling(2, rank, count);
      void* buffers[] = {buckets[k].data()};
      mccl_op_desc desc = all_reduce_desc(plan, buffers, count, MCCL_I64);
      desc.produced = &produced;
      desc.consumed = &consumed;
      desc.produced_value = desc.consumed_value = k + 1;
      ops.push_back(start(comms[rank], desc));
      mccl_plan_destroy(plan);
    }
    EXPECT(mccl_op_test(ops[0]) == MCCL_PENDING);
    Random random{static_cast<uint64_t>(rank)};
    for (uint64_t k = 0; k < kBuckets; ++k) {
      nap(&random);
      std::fill(buckets[k].begin(), buckets[k].end(), static_cast<int64_t>(k) + rank);
      device.signal(k + 1);
    }
    for (uint64_t k = 0; k < kBuckets; ++k) {
      EXPECT(finish(ops[k]) == MCCL_OK);
      int64_t sum = 2 * static_cast<int64_t>(k) + 1;
      bool right = std::all_of(buckets[k].begin(), buckets[k].end(),
                               [sum](int64_t value) { return value == sum; });
      EXPECT_MSG(right, "bucket %llu of rank %d", static_cast<unsigned long long>(k), rank);
    }
    EXPECT(log.copy() == one_to(kBuckets));
  });
}

// One counter, two communicators: the later operation ends first, but may not be reported first.
void raised_in_the_order_of_the_calls() {
  World first(2);
  World second(2);
  Plans plans(ring, 2, 10);
  Log log;
  Device device;
  mccl_ticket produced = device.ticket();
  mccl_ticket consumed = log.ticket();
  std::vector<float> data(40, 1);
  void* buffers[4][1];
  for (size_t i = 0; i < 4; ++i) buffers[i][0] = data.data() + 10 * i;
  mccl_op_desc held = all_reduce_desc(plans[0], buffers[0], 10, MCCL_F32);
  held.produced = &produced;
  held.produced_value = 1;
  held.consumed = &consumed;
  held.consumed_value = 1;
  mccl_op_desc quick = all_reduce_desc(plans[0], buffers[1], 10, MCCL_F32);
  quick.consumed = &consumed;
  quick.consumed_value = 2;
  mccl_op* ops[] = {start(first[0], held), start(second[0], quick),
                    start(first[1], all_reduce_desc(plans[1], buffers[2], 10, MCCL_F32)),
                    start(second[1], all_reduce_desc(plans[1], buffers[3], 10, MCCL_F32))};
  EXPECT(finish(ops[1]) == MCCL_OK);
  EXPECT(mccl_op_test(ops[0]) == MCCL_PENDING);
  EXPECT(log.copy().empty());
  device.signal(1);
  EXPECT(finish(ops[0]) == MCCL_OK && finish(ops[2]) == MCCL_OK && finish(ops[3]) == MCCL_OK);
  EXPECT(log.copy() == one_to(2));
}

// A buffer handed over in pieces: each may be read, and is given back, on its own.
void pieces(uint32_t redop) {
  constexpr uint64_t kPieces = 8;
  constexpr uint64_t kEach = 20000;
  constexpr uint64_t kCount = kPieces * kEach;
  World comms(2);
  Plans plans(ring, 2, kCount);
  Log logs[2];
  each_rank(2, [&](int rank) {
    Device device;
    mccl_ticket produced = device.ticket();
    mccl_ticket consumed = logs[rank].ticket();
    std::vector<float> data(kCount, -1e6F);
    mccl_piece list[kPieces];
    for (uint64_t p = 0; p < kPieces; ++p) list[p] = {p * kEach, kEach, p + 1, p + 1};
    void* buffers[] = {data.data()};
    mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, kCount, MCCL_F32, redop);
    desc.produced = &produced;
    desc.consumed = &consumed;
    desc.pieces = list;
    desc.n_pieces = kPieces;
    desc.premul = 2;
    mccl_op* op = start(comms[rank], desc);
    Random random{static_cast<uint64_t>(rank) + 40};
    for (uint64_t p = 0; p < kPieces; ++p) {
      nap(&random);
      std::fill_n(data.begin() + static_cast<ptrdiff_t>(p * kEach), kEach,
                  static_cast<float>(p + 1) * static_cast<float>(rank + 1));
      device.signal(p + 1);
    }
    EXPECT(finish(op) == MCCL_OK);
    float factor = redop == MCCL_PREMUL_SUM ? 2 : 1;
    bool right = true;
    for (uint64_t i = 0; i < kCount; ++i) {
      right = right && data[i] == static_cast<float>(i / kEach + 1) * 3 * factor;
    }
    EXPECT_MSG(right, "redop %u on rank %d", redop, rank);
    EXPECT(logs[rank].copy() == one_to(kPieces));
  });
}

// A piece comes back while later ones are not even produced: no waiting for the whole.
void pieces_come_back_early() {
  constexpr uint64_t kEach = 1000;
  World comms(2);
  PlanBuilder sender(2, 0, 1);
  sender.send(1, {0, 0}, 2 * kEach);
  PlanBuilder receiver(2, 1, 1);
  receiver.recv(0, {0, 0}, 2 * kEach);
  mccl_plan* plans[] = {sender.build(), receiver.build()};
  Device device;
  Log log;
  mccl_ticket produced = device.ticket();
  mccl_ticket consumed = log.ticket();
  std::vector<float> out(2 * kEach, 5);
  std::vector<float> in(2 * kEach);
  mccl_piece list[] = {{0, kEach, 1, 1}, {kEach, kEach, 2, 2}};
  void* out_buffers[] = {out.data()};
  void* in_buffers[] = {in.data()};
  mccl_op_desc desc = all_reduce_desc(plans[0], out_buffers, 2 * kEach, MCCL_F32, MCCL_NO_REDOP);
  desc.collective = MCCL_BROADCAST;
  mccl_op_desc receive = desc;
  receive.plan = plans[1];
  receive.buffers = in_buffers;
  desc.produced = &produced;
  desc.consumed = &consumed;
  desc.pieces = list;
  desc.n_pieces = 2;
  mccl_op* sent = start(comms[0], desc);
  mccl_op* received = start(comms[1], receive);
  device.signal(1);
  until([&] { return log.copy() == one_to(1); });
  EXPECT(mccl_op_test(sent) == MCCL_PENDING && mccl_op_test(received) == MCCL_PENDING);
  device.signal(2);
  EXPECT(finish(sent) == MCCL_OK && finish(received) == MCCL_OK);
  EXPECT(log.copy() == one_to(2));
  EXPECT(in == out);
  for (mccl_plan* plan : plans) mccl_plan_destroy(plan);
}

// A GPU that waits for a failed operation must not wait for ever.
void failure_releases_the_device() {
  World comms(2);
  Plans plans(ring, 2, 10);
  Log log;
  mccl_ticket consumed = log.ticket();
  std::vector<float> data(10);
  void* buffers[] = {data.data()};
  mccl_op_desc desc = all_reduce_desc(plans[0], buffers, 10, MCCL_F32);
  desc.consumed = &consumed;
  std::vector<mccl_op*> ops;
  for (uint64_t k = 1; k <= 3; ++k) {
    desc.consumed_value = k;
    ops.push_back(start(comms[0], desc));
  }
  mccl_comm_abort(comms[0], "enough");
  for (mccl_op* op : ops) EXPECT(finish(op) == MCCL_BROKEN);
  EXPECT(log.copy() == one_to(3));
}

}  // namespace

int main() {
  start_watchdog();
  buckets_of_a_slow_device();
  raised_in_the_order_of_the_calls();
  pieces(MCCL_SUM);
  pieces(MCCL_PREMUL_SUM);
  pieces_come_back_early();
  failure_releases_the_device();
  return check::result();
}
