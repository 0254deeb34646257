// Failures: loud, on every rank, by name. Nothing here waits for a fixed time: tests wait for
// the error, and a hang ends in the watchdog.

#include <memory>
#include <utility>

#include "engine_ranks.h"

using namespace ranks;

namespace {

constexpr uint64_t kCount = 1000;

// Starts an all-reduce whose data this object keeps.
struct Call {
  std::vector<float> data;
  void* buffers[1];
  mccl_op* op = nullptr;
  Call(mccl_comm* comm, const mccl_plan* plan, uint64_t count, int64_t timeout_us = kLimitUs)
      : data(count, 1), buffers{data.data()} {
    mccl_op_desc desc = all_reduce_desc(plan, buffers, count, MCCL_F32);
    desc.timeout_us = timeout_us;
    op = start(comm, desc);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  int end() { return finish(std::exchange(op, nullptr)); }
};

struct Issue {
  uint32_t collective = MCCL_ALL_REDUCE;
  uint32_t dtype = MCCL_F32;
  uint32_t redop = MCCL_SUM;
  uint64_t count = kCount;
  int32_t root = -1;
  int extra = 0;  // collectives of its own before
};

void mismatch(const Issue& zero, const Issue& one, const char* says_zero, const char* says_one) {
  World comms(2);
  const Issue* issues[] = {&zero, &one};
  each_rank(2, [&](int rank) {
    const Issue& issue = *issues[rank];
    mccl_plan* plan = ring(2, rank, issue.count);
    mccl_plan* nothing = PlanBuilder(2, rank, 1).build();
    std::vector<double> data(issue.count);
    void* buffers[] = {data.data()};
    mccl_op_desc desc = all_reduce_desc(plan, buffers, issue.count, issue.dtype, issue.redop);
    desc.collective = issue.collective;
    desc.root = issue.root;
    for (int i = 0; i < issue.extra; ++i) {
      EXPECT(run_sync(comms[rank], all_reduce_desc(nothing, buffers, 0, MCCL_F32)) == MCCL_OK);
    }
    EXPECT(run_sync(comms[rank], desc) == MCCL_BROKEN);
    mccl_error error = error_of(comms[rank]);
    EXPECT_MSG(error.failure == MCCL_FAIL_MISMATCH, "rank %d: %u %s", rank, error.failure,
               error.message);
    EXPECT_MSG(mentions(error, says_zero) && mentions(error, says_one), "rank %d says: %s", rank,
               error.message);
    EXPECT(mentions(error, "rank 0") && mentions(error, "rank 1"));
    EXPECT(std::string(error.phase) == "header");
    mccl_plan_destroy(plan);
    mccl_plan_destroy(nothing);
  });
}

void mismatches() {
  Issue base;
  Issue other = base;
  other.count = 1001;
  mismatch(base, other, "1000 elements", "1001 elements");
  other = base;
  other.dtype = MCCL_I32;
  mismatch(base, other, "float32", "int32");
  other = base;
  other.redop = MCCL_MAX;
  mismatch(base, other, "SUM", "MAX");
  other = base;
  other.collective = MCCL_BROADCAST;
  other.root = 1;
  mismatch(base, other, "all_reduce", "broadcast");
  other = base;
  other.extra = 2;
  mismatch(base, other, "collective #1", "collective #3");
}

void another_epoch() {
  Options options;
  options.stray_rank = 1;
  World comms(2, options);
  Plans plans(ring, 2, kCount);
  Call zero(comms[0], plans[0], kCount);
  Call one(comms[1], plans[1], kCount);
  EXPECT(zero.end() == MCCL_BROKEN && one.end() == MCCL_BROKEN);
  EXPECT(error_of(comms[0]).failure == MCCL_FAIL_MISMATCH);
  EXPECT(mentions(error_of(comms[0]), "incarnation"));
}

// Rank 0 of a group whose other members are only sockets in our hands.
struct Lonely {
  mccl_comm* comm;
  std::vector<int> data;
  int control = -1;
  explicit Lonely(int64_t peer_timeout_us = kLimitUs) {
    mccl_comm_config config{};
    config.size = 2;
    config.peer_timeout_us = peer_timeout_us;
    config.record_capacity = 4;
    std::strcpy(config.name, "lonely");
    comm = mccl_comm_create(&config);
    mccl_comm_set_peer_label(comm, 1, "other-host pid 17");
    for (uint32_t channel = 0; channel < 4; ++channel) {
      Pair pair = socket_pair();
      data.push_back(pair.to);
      mccl_comm_add_link(comm, 1, channel, &pair.from, 1);
    }
    add_control();
  }
  void add_control() {
    Pair pair = socket_pair();
    control = pair.to;
    mccl_comm_add_link(comm, 1, MCCL_CONTROL, &pair.from, 1);
  }
  void close_data() {
    for (int fd : data) close(fd);
    data.clear();
  }
  ~Lonely() {
    close_data();
    close(control);
    mccl_comm_destroy(comm);
  }
  Lonely(const Lonely&) = delete;
  Lonely& operator=(const Lonely&) = delete;
};

void peer_dies() {
  Plans plans(ring, 2, kCount);
  for (bool control_too : {true, false}) {  // false: found by the data links alone
    Lonely rank;
    Call call(rank.comm, plans[0], kCount);
    rank.close_data();
    if (control_too) {
      close(rank.control);
      rank.control = -1;
    }
    EXPECT(call.end() == MCCL_BROKEN);
    mccl_error error = error_of(rank.comm);
    EXPECT_MSG(error.failure == MCCL_FAIL_PEER_DIED, "%u %s", error.failure, error.message);
    EXPECT(error.culprit == 1 && mentions(error, "rank 1 (other-host pid 17)"));
    Call next(rank.comm, plans[0], kCount);
    EXPECT(next.op == nullptr);  // broken for good, and refused at once
  }
}

void peer_dies_while_idle() {
  Lonely rank;
  int first = rank.control;
  rank.add_control();  // a second link of the pair: one may end without harm
  close(first);
  Plans plans(ring, 2, kCount);
  Call call(rank.comm, plans[0], kCount);
  EXPECT(mccl_op_wait(call.op, 50000) == MCCL_WAIT_TIMEOUT);
  close(rank.control);
  rank.control = -1;
  EXPECT(call.end() == MCCL_BROKEN);
  EXPECT(error_of(rank.comm).failure == MCCL_FAIL_PEER_DIED);

  Lonely idle;
  close(idle.control);
  idle.control = -1;
  until([&] { return broken(idle.comm); });
  EXPECT(error_of(idle.comm).failure == MCCL_FAIL_PEER_DIED);
}

void peer_is_silent() {
  Lonely rank(200000);
  Plans plans(ring, 2, kCount);
  Call call(rank.comm, plans[0], kCount);
  EXPECT(call.end() == MCCL_BROKEN);
  mccl_error error = error_of(rank.comm);
  EXPECT_MSG(error.failure == MCCL_FAIL_PEER_SILENT, "%u %s", error.failure, error.message);
  EXPECT(error.culprit == 1);
}

// Who said goodbye is not silent, even if its link stays open, while others work on.
void no_silence_after_goodbye() {
  Lonely rank(100000);
  const uint32_t goodbye[] = {0x4d434b31, 4, 0, 0};
  EXPECT(write(rank.control, goodbye, sizeof(goodbye)) == sizeof(goodbye));
  uint8_t value = 0;  // from anyone: not this peer's fault in particular, its data link is open
  mccl_op* op = message(rank.comm, false, -1, &value, 1, 1);
  EXPECT(mccl_op_wait(op, 600000) == MCCL_WAIT_TIMEOUT);
  rank.close_data();
  EXPECT(finish(op) == MCCL_BROKEN);
  EXPECT(error_of(rank.comm).failure == MCCL_FAIL_PEER_LEFT);
}

void write_control(int fd, uint32_t type, const void* body, uint32_t size) {
  const uint32_t frame[] = {0x4d434b31, type, size, 0};
  std::string bytes(reinterpret_cast<const char*>(frame), sizeof(frame));
  bytes.append(static_cast<const char*>(body), size);
  EXPECT(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

// What a control link tells must be what a rank can say; it is shown and used as an index.
void nonsense_on_control_links() {
  mccl_error unknown{};
  unknown.failure = 77;
  mccl_error stranger{};
  stranger.failure = MCCL_FAIL_TIMEOUT;
  stranger.culprit = 1000;
  std::string beat(64, '\x7f');
  struct {
    uint32_t type;
    const void* body;
    uint32_t size;
  } frames[] = {{3, &unknown, sizeof(unknown)}, {3, &stranger, sizeof(stranger)},
                {1, beat.data(), 64},           {3, &stranger, 8},
                {9, nullptr, 0},                {4, beat.data(), 4}};
  for (const auto& frame : frames) {
    Lonely rank;
    write_control(rank.control, frame.type, frame.body, frame.size);
    until([&] { return broken(rank.comm); });
    mccl_error error = error_of(rank.comm);
    EXPECT_MSG(error.failure == MCCL_FAIL_CORRUPT && error.culprit == 1, "type %u: %u %s",
               frame.type, error.failure, error.message);
  }
}

void peer_left() {
  Plans plans(ring, 2, kCount);
  for (bool before : {true, false}) {
    World comms(2);
    if (before) comms.destroy(1);
    Call call(comms[0], plans[0], kCount);
    if (!before) {
      EXPECT(mccl_op_test(call.op) == MCCL_PENDING);
      comms.destroy(1);
    }
    EXPECT(call.op == nullptr || call.end() == MCCL_BROKEN);
    mccl_error error = error_of(comms[0]);
    EXPECT_MSG(error.failure == MCCL_FAIL_PEER_LEFT && error.culprit == 1, "before %d: %u %s",
               before, error.failure, error.message);
  }
  for (bool send : {true, false}) {  // needed for one direction only
    World comms(2);
    std::vector<uint8_t> data(4 << 20);
    mccl_op* op = message(comms[0], send, 1, data.data(), data.size(), 1);
    comms.destroy(1);
    EXPECT(finish(op) == MCCL_BROKEN);
    mccl_error error = error_of(comms[0]);
    EXPECT_MSG(error.failure == MCCL_FAIL_PEER_LEFT && error.culprit == 1, "send %d: %u %s", send,
               error.failure, error.message);
  }
}

// What a rank sent before it left arrives.
void last_words() {
  for (bool checksum : {false, true}) {
    Options options;
    options.checksum = checksum;
    World comms(2, options);
    std::vector<uint8_t> out(5000, 9);
    std::vector<uint8_t> in(5000);
    EXPECT(finish(message(comms[0], true, 1, out.data(), out.size(), 1)) == MCCL_OK);
    comms.destroy(0);
    EXPECT(finish(message(comms[1], false, 0, in.data(), in.size(), 1)) == MCCL_OK);
    EXPECT(in == out);
    EXPECT(!broken(comms[1]));
  }
}

void operation_times_out() {
  Plans plans(ring, 2, kCount);
  World comms(2);
  Call late(comms[0], plans[0], kCount, 100000);
  EXPECT(late.end() == MCCL_BROKEN);
  for (int rank : {0, 1}) {
    until([&] { return broken(comms[rank]); });
    mccl_error error = error_of(comms[rank]);
    EXPECT(error.failure == MCCL_FAIL_TIMEOUT && error.culprit == 1 && error.reporter == 0);
    EXPECT(error.collective == MCCL_ALL_REDUCE && error.sequence == 1);
    EXPECT(error.waited_us >= 100000 && mentions(error, "rank 1") && mentions(error, "100 ms"));
  }
  World own(2);  // our own GPU did not produce: no peer is to blame
  alignas(8) uint64_t word = 0;
  mccl_ticket ticket{};
  mccl_word_ticket(&word, &ticket);
  std::vector<float> data(kCount);
  void* buffers[] = {data.data()};
  mccl_op_desc desc = all_reduce_desc(plans[0], buffers, kCount, MCCL_F32);
  desc.produced = &ticket;
  desc.produced_value = 1;
  desc.timeout_us = 100000;
  EXPECT(run_sync(own[0], desc) == MCCL_BROKEN);
  EXPECT(error_of(own[0]).failure == MCCL_FAIL_TIMEOUT && error_of(own[0]).culprit == 0);
  World messages(2);
  uint8_t byte = 0;
  EXPECT(finish(message(messages[0], false, 1, &byte, 1, 5, 100000)) == MCCL_BROKEN);
  EXPECT(error_of(messages[0]).failure == MCCL_FAIL_TIMEOUT);
  EXPECT(error_of(messages[0]).culprit == 1);
}

// One wait's own limit leaves the operation going.
void a_wait_times_out() {
  World comms(2);
  Plans plans(ring, 2, kCount);
  Call zero(comms[0], plans[0], kCount, -1);  // no limit
  EXPECT(mccl_op_wait(zero.op, 1000) == MCCL_WAIT_TIMEOUT);
  Call one(comms[1], plans[1], kCount, INT64_MAX);
  EXPECT(zero.end() == MCCL_OK && one.end() == MCCL_OK);
}

void abort_wakes_everybody() {
  World comms(2);
  Plans plans(ring, 2, kCount);
  std::atomic<int> waiting{0};
  each_rank(5, [&](int i) {
    if (i == 4) {
      until([&] { return waiting == 4; });
      mccl_comm_abort(comms[0], "the user pressed a key");
      return;
    }
    if (i == 3) {  // one runs on its own thread
      std::vector<float> data(kCount, 1);
      void* buffers[] = {data.data()};
      waiting += 1;
      EXPECT(run_sync(comms[0], all_reduce_desc(plans[0], buffers, kCount, MCCL_F32)) ==
             MCCL_BROKEN);
      return;
    }
    Call call(comms[0], plans[0], kCount);
    waiting += 1;
    EXPECT(call.op == nullptr || call.end() == MCCL_BROKEN);
  });
  for (int rank : {0, 1}) {
    until([&] { return broken(comms[rank]); });
    mccl_error error = error_of(comms[rank]);
    EXPECT(error.failure == MCCL_FAIL_ABORTED && error.reporter == 0);
    EXPECT(mentions(error, "the user pressed a key"));
  }
}

// The first error stays, whatever is reported afterwards.
void first_error_wins() {
  World comms(2);
  mccl_error given{};
  given.failure = MCCL_FAIL_INTERNAL;
  given.culprit = 1;
  std::strcpy(given.message, "the first");
  mccl_comm_fail(comms[0], &given);
  mccl_comm_abort(comms[0], "the second");
  EXPECT(error_of(comms[0]).failure == MCCL_FAIL_INTERNAL);
  until([&] { return broken(comms[1]); });
  EXPECT(mentions(error_of(comms[1]), "the first"));
}

void destroyed_in_flight() {
  for (bool sync : {false, true}) {
    World comms(2);
    Plans plans(ring, 2, kCount);
    std::vector<std::unique_ptr<Call>> calls;
    for (int k = 0; k < 30; ++k) {  // more than are in the lanes at once
      calls.push_back(std::make_unique<Call>(comms[0], plans[0], kCount));
    }
    std::thread waiter([&] { EXPECT(sync || mccl_op_wait(calls[20]->op, -1) == MCCL_BROKEN); });
    comms.destroy(0);
    waiter.join();
    for (auto& call : calls) EXPECT(call->end() == MCCL_BROKEN);
    Call other(comms[1], plans[1], kCount);
    EXPECT(other.op == nullptr || other.end() == MCCL_BROKEN);
    EXPECT(error_of(comms[1]).culprit == 0);
  }
}

}  // namespace

int main() {
  start_watchdog();
  mismatches();
  another_epoch();
  peer_dies();
  peer_dies_while_idle();
  peer_is_silent();
  no_silence_after_goodbye();
  nonsense_on_control_links();
  peer_left();
  last_words();
  operation_times_out();
  a_wait_times_out();
  abort_wakes_everybody();
  first_error_wins();
  destroyed_in_flight();
  return check::result();
}
