// Collectives of ranks in one process: exact results however they are issued.

#include <algorithm>
#include <cmath>

#include "engine_ranks.h"

using namespace ranks;

namespace {

// Small whole numbers: their sums are exact in every dtype here.
template <typename T>
std::vector<T> values(uint64_t count, int rank, uint64_t salt = 0) {
  std::vector<T> out(count);
  for (uint64_t i = 0; i < count; ++i) {
    out[i] = static_cast<T>((i * 7 + salt * 13 + static_cast<uint64_t>(rank) * 31) % 11 + 1);
  }
  return out;
}

template <typename T>
std::vector<T> total(int world, uint64_t count, uint64_t salt = 0) {
  std::vector<T> out(count);
  for (int rank = 0; rank < world; ++rank) {
    std::vector<T> part = values<T>(count, rank, salt);
    for (uint64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] + part[i]);
  }
  return out;
}

template <typename T>
void all_reduce_case(MakePlan make, int world, uint64_t count, uint32_t dtype, bool sync) {
  World comms(world);
  Plans plans(make, world, count);
  std::vector<T> expected = total<T>(world, count);
  each_rank(world, [&](int rank) {
    std::vector<T> data = values<T>(count, rank);
    void* buffers[] = {data.data()};
    mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, count, dtype);
    int status = sync ? run_sync(comms[rank], desc) : finish(start(comms[rank], desc));
    EXPECT(status == MCCL_OK);
    EXPECT_MSG(data == expected, "world %d, count %llu, dtype %u: wrong sum on rank %d", world,
               static_cast<unsigned long long>(count), dtype, rank);
  });
}

void exact_sums() {
  for (bool sync : {true, false}) {
    for (int world : {2, 3, 4}) {
      for (uint64_t count : {1, 2, 3, 5, 1000, 300007}) {
        all_reduce_case<float>(ring, world, count, MCCL_F32, sync);
      }
    }
    for (int world : {2, 4}) {
      for (uint64_t count : {1, 7, 100003}) {
        all_reduce_case<int64_t>(doubling, world, count, MCCL_I64, sync);
      }
    }
    all_reduce_case<uint8_t>(ring, 3, 10007, MCCL_U8, sync);
  }
}

// A group of one: a plan without connections.
void single_rank() {
  World comms(1);
  PlanBuilder b(1, 0, 2);
  b.local(MCCL_STEP_COPY, {1, 0}, {0, 0}, 5, {}, MCCL_STEP_FINAL);
  mccl_plan* plan = b.build();
  std::vector<float> in{1, 2, 3, 4, 5};
  std::vector<float> out(5);
  void* buffers[] = {in.data(), out.data()};
  EXPECT(run_sync(comms[0], all_reduce_desc(plan, buffers, 5, MCCL_F32)) == MCCL_OK);
  EXPECT(out == in);
  mccl_plan* nothing = PlanBuilder(1, 0, 1).build();
  EXPECT(run_sync(comms[0], all_reduce_desc(nothing, buffers, 0, MCCL_F32)) == MCCL_OK);
  mccl_plan_destroy(plan);
  mccl_plan_destroy(nothing);
}

// Many operations on one communicator from one thread that waits for none, while another
// thread runs synchronous ones on a second communicator.
void burst_beside_synchronous_calls() {
  constexpr int kWorld = 3;
  constexpr int kBurst = 40;
  World first(kWorld);
  World second(kWorld);
  each_rank(kWorld * 2, [&](int i) {
    int rank = i % kWorld;
    bool burst = i < kWorld;
    if (burst) {
      std::vector<std::vector<int32_t>> data;
      std::vector<mccl_op*> ops;
      data.reserve(kBurst);
      for (uint64_t k = 0; k < kBurst; ++k) {
        uint64_t count = 1 + k * k * 40;
        data.push_back(values<int32_t>(count, rank, k));
        void* buffers[] = {data.back().data()};
        mccl_plan* plan = ring(kWorld, rank, count);
        ops.push_back(start(first[rank], all_reduce_desc(plan, buffers, count, MCCL_I32)));
        mccl_plan_destroy(plan);  // operations keep what they need
      }
      for (uint64_t k = 0; k < kBurst; ++k) {
        mccl_op_info info{};
        EXPECT(mccl_op_wait(ops[k], -1) == MCCL_OK);
        mccl_op_get_info(ops[k], &info);
        EXPECT(info.sequence == k + 1);
        EXPECT(info.status == MCCL_OK && info.completed_us >= info.started_us);
        mccl_op_release(ops[k]);
        EXPECT(data[k] == total<int32_t>(kWorld, data[k].size(), k));
      }
    } else {
      mccl_plan* plan = ring(kWorld, rank, 33);
      for (uint64_t k = 0; k < 100; ++k) {
        std::vector<int32_t> data = values<int32_t>(33, rank, k);
        void* buffers[] = {data.data()};
        EXPECT(run_sync(second[rank], all_reduce_desc(plan, buffers, 33, MCCL_I32)) == MCCL_OK);
        EXPECT(data == total<int32_t>(kWorld, 33, k));
      }
      mccl_plan_destroy(plan);
    }
  });
}

// all_reduce(x) five times without waiting must give what five in a row give, also where
// the memory only overlaps.
void overlapping_memory() {
  constexpr uint64_t kCount = 200003;
  for (uint64_t shift : {uint64_t{0}, uint64_t{1000}}) {
    World comms(2);
    Plans plans(ring, 2, kCount);
    std::vector<std::vector<int64_t>> after(2);
    each_rank(2, [&](int rank) {
      std::vector<int64_t> data = values<int64_t>(kCount + shift, rank);
      std::vector<mccl_op*> ops;
      for (int k = 0; k < 5; ++k) {
        void* buffers[] = {data.data() + (k % 2 ? shift : 0)};
        ops.push_back(start(comms[rank], all_reduce_desc(plans[rank], buffers, kCount, MCCL_I64)));
      }
      for (mccl_op* op : ops) EXPECT(finish(op) == MCCL_OK);
      after[static_cast<size_t>(rank)] = std::move(data);
    });
    std::vector<int64_t> serial[2] = {values<int64_t>(kCount + shift, 0),
                                      values<int64_t>(kCount + shift, 1)};
    for (int k = 0; k < 5; ++k) {
      for (uint64_t i = k % 2 ? shift : 0, n = 0; n < kCount; ++i, ++n) {
        serial[0][i] = serial[1][i] = serial[0][i] + serial[1][i];
      }
    }
    EXPECT(after[0] == serial[0]);
    EXPECT(after[1] == serial[1]);
  }
}

// What is received by one operation and sent on by the next, issued before anything came: the
// lanes of the two are different, only their memory orders them.
void forwarding_waits_for_its_input() {
  constexpr uint64_t kCount = 1000;
  World comms(2);
  PlanBuilder get[2] = {{2, 0, 1}, {2, 1, 1}};
  PlanBuilder give[2] = {{2, 0, 1}, {2, 1, 1}};
  for (int rank : {0, 1}) {
    get[rank].recv(1 - rank, {0, 0}, kCount);
    give[rank].send(1 - rank, {0, 0}, kCount);
  }
  mccl_plan* plans[2][2] = {{get[0].build(), give[0].build()}, {give[1].build(), get[1].build()}};
  std::vector<int32_t> relayed(kCount, -1);
  std::vector<int32_t> out = values<int32_t>(kCount, 1);
  std::vector<int32_t> back(kCount);
  void* buffers[2][2][1] = {{{relayed.data()}, {relayed.data()}}, {{out.data()}, {back.data()}}};
  std::vector<mccl_op*> ops;
  for (int rank : {0, 1}) {
    for (int k : {0, 1}) {
      mccl_op_desc desc =
          all_reduce_desc(plans[rank][k], buffers[rank][k], kCount, MCCL_I32, MCCL_NO_REDOP);
      desc.collective = MCCL_BROADCAST;
      desc.root = 1 - k;
      ops.push_back(start(comms[rank], desc));
    }
    if (rank != 0) continue;
    single_rank();  // the engine has looked at both by now
    EXPECT(mccl_op_test(ops[0]) == MCCL_PENDING && mccl_op_test(ops[1]) == MCCL_PENDING);
  }
  for (mccl_op* op : ops) EXPECT(finish(op) == MCCL_OK);
  EXPECT(relayed == out && back == out);
  for (auto& pair : plans) {
    for (mccl_plan* plan : pair) mccl_plan_destroy(plan);
  }
}

uint16_t half_of(float value) {
  uint16_t out;
  mccl_convert(MCCL_F16, &out, MCCL_F32, &value, 1);
  return out;
}

// The direct plan sums in f32 and rounds once: 2048 + 1 + 1 is 2050 in f16, hop by hop 2048.
void accumulates_in_float() {
  constexpr int kWorld = 3;
  constexpr uint64_t kEach = 3001;
  World comms(kWorld);
  Plans plans(direct_reduce_scatter, kWorld, kEach);
  each_rank(kWorld, [&](int rank) {
    std::vector<uint16_t> in(kEach * kWorld, half_of(rank == 0 ? 2048.0F : 1.0F));
    std::vector<uint16_t> out(kEach);
    void* buffers[] = {in.data(), out.data()};
    mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, kEach, MCCL_F16);
    desc.collective = MCCL_REDUCE_SCATTER;
    EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
    EXPECT(out == std::vector<uint16_t>(kEach, half_of(2050.0F)));
    desc.redop = MCCL_AVG;  // divided before the one rounding: 2050 / 3 = 683.33, f16 683.5
    EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
    EXPECT(out == std::vector<uint16_t>(kEach, half_of(2050.0F / 3)));
  });
}

void average_and_premul() {
  constexpr uint64_t kCount = 50021;
  for (MakePlan make : {MakePlan{ring}, MakePlan{doubling}}) {
    World comms(4);
    Plans plans(make, 4, kCount);
    std::vector<float> sum = total<float>(4, kCount);
    each_rank(4, [&](int rank) {
      std::vector<float> data = values<float>(kCount, rank);
      void* buffers[] = {data.data()};
      mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, kCount, MCCL_F32, MCCL_AVG);
      EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
      bool exact = true;
      for (uint64_t i = 0; i < kCount; ++i) exact = exact && data[i] == sum[i] / 4;
      EXPECT(exact);
      data = values<float>(kCount, rank);
      buffers[0] = data.data();
      desc = all_reduce_desc(plans[rank], buffers, kCount, MCCL_F32, MCCL_PREMUL_SUM);
      desc.premul = 0.5;
      EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
      exact = true;
      for (uint64_t i = 0; i < kCount; ++i) exact = exact && data[i] == sum[i] / 2;
      EXPECT(exact);
    });
  }
}

// reduce() must not touch the input of a rank that only sends, also with PREMUL_SUM.
void premul_leaves_inputs_alone() {
  constexpr uint64_t kCount = 1009;
  World comms(2);
  PlanBuilder root(2, 0, 2);
  root.recv_reduce(1, {1, 0}, {0, 0}, kCount, {}, MCCL_STEP_FINAL);
  PlanBuilder leaf(2, 1, 1);
  leaf.send(0, {0, 0}, kCount);
  mccl_plan* plans[] = {root.build(), leaf.build()};
  std::vector<float> sum = total<float>(2, kCount);
  each_rank(2, [&](int rank) {
    std::vector<float> in = values<float>(kCount, rank);
    std::vector<float> out(kCount);
    void* buffers[] = {in.data(), out.data()};
    mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, kCount, MCCL_F32, MCCL_PREMUL_SUM);
    desc.collective = MCCL_REDUCE;
    desc.premul = 2.0;
    desc.root = 0;
    EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
    EXPECT(in == values<float>(kCount, rank));
    if (rank != 0) return;
    for (float& value : sum) value *= 2;
    EXPECT(out == sum);
  });
  for (mccl_plan* plan : plans) mccl_plan_destroy(plan);
}

// f32 over the wire as f16: half the bytes, and the same result bit for bit on every rank.
void compressed_wire() {
  constexpr uint64_t kCount = 100003;
  World comms(3);
  Plans plans(ring, 3, kCount);
  std::vector<std::vector<float>> results(3);
  each_rank(3, [&](int rank) {
    Random random{static_cast<uint64_t>(rank) + 5};
    std::vector<float> data(kCount);
    for (float& value : data) value = static_cast<float>(random.below(100000)) / 997.0F;
    void* buffers[] = {data.data()};
    mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, kCount, MCCL_F32);
    desc.wire_dtype = MCCL_F16;
    EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
    mccl_stats stats{};
    mccl_comm_get_stats(comms[rank], &stats);
    EXPECT(stats.bytes_sent < kCount * 4 / 3 * 2 + 1000);
    EXPECT(stats.bytes_sent > kCount * 4 / 3 * 2 - 1000);
    results[static_cast<size_t>(rank)] = std::move(data);
  });
  EXPECT(results[0] == results[1] && results[1] == results[2]);
  double worst = 0;
  Random random[] = {{5}, {6}, {7}};
  for (uint64_t i = 0; i < kCount; ++i) {
    double sum = 0;
    for (Random& r : random) sum += static_cast<float>(r.below(100000)) / 997.0F;
    worst = std::max(worst, std::abs(results[0][i] - sum) / std::max(sum, 1.0));
  }
  EXPECT_MSG(worst > 0 && worst < 3e-3, "largest relative error %g", worst);
}

}  // namespace

int main() {
  start_watchdog();
  exact_sums();
  single_rank();
  burst_beside_synchronous_calls();
  overlapping_memory();
  forwarding_waits_for_its_input();
  accumulates_in_float();
  average_and_premul();
  premul_leaves_inputs_alone();
  compressed_wire();
  return check::result();
}
