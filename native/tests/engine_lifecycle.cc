// Creating, destroying, forking, recording, and arguments that make no sense.

#include <dirent.h>
#include <sys/wait.h>

#include "engine_ranks.h"

using namespace ranks;

namespace {

int open_descriptors() {
  int count = 0;
  DIR* directory = opendir("/dev/fd");
  if (directory == nullptr) std::abort();
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

void again_and_again() {
  constexpr uint64_t kCount = 100;
  Plans plans(ring, 2, kCount);
  auto once = [&] {
    World comms(2);
    each_rank(2, [&](int rank) {
      std::vector<float> data(kCount, 1);
      void* buffers[] = {data.data()};
      EXPECT(run_sync(comms[rank], all_reduce_desc(plans[rank], buffers, kCount, MCCL_F32)) ==
             MCCL_OK);
      EXPECT(data == std::vector<float>(kCount, 2));
    });
  };
  once();
  int before = open_descriptors();
  int most = 0;
  for (int i = 0; i < 200; ++i) {
    once();
    most = std::max(most, open_descriptors());
  }
  until([&] { return open_descriptors() <= before; });
  // Both sides have said goodbye, so nothing lingers: at most a few groups are being closed.
  EXPECT_MSG(most < before + 100, "%d descriptors before, %d at most", before, most);
}

// Nobody holds these operations: the engine alone must.
void without_handles() {
  World comms(2);
  Plans plans(ring, 2, 50);
  std::vector<float> data[2] = {std::vector<float>(50, 1), std::vector<float>(50, 1)};
  for (int k = 0; k < 200; ++k) {
    for (int rank : {0, 1}) {
      void* buffers[] = {data[rank].data()};
      mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, 50, MCCL_F32, MCCL_AVG);
      EXPECT(mccl_submit(comms[rank], &desc, nullptr) == MCCL_OK);
    }
  }
  for (int rank : {0, 1}) {
    until([&] {
      mccl_stats stats{};
      mccl_comm_get_stats(comms[rank], &stats);
      return stats.operations == 200;
    });
    EXPECT(data[rank] == std::vector<float>(50, 1));
  }
}

int in_child(mccl_comm* comm, mccl_op* op, const mccl_plan* plan) {
  std::vector<float> data(10);
  void* buffers[] = {data.data()};
  mccl_op_desc desc = all_reduce_desc(plan, buffers, 10, MCCL_F32);
  mccl_op* other = nullptr;
  if (mccl_submit(comm, &desc, &other) != MCCL_FORKED) return 1;
  if (mccl_op_wait(op, -1) != MCCL_FORKED) return 2;
  mccl_comm_config config{};
  config.size = 1;
  config.peer_timeout_us = 1;
  if (mccl_comm_create(&config) != nullptr) return 3;
  if (std::string(mccl_last_error()).find("fork") == std::string::npos) return 4;
  Pair pair = socket_pair();
  if (mccl_comm_add_link(comm, 1, MCCL_CONTROL, &pair.from, 1) != MCCL_FORKED) return 5;
  mccl_op_release(op);
  mccl_comm_abort(comm, "in the child");
  mccl_comm_destroy(comm);
  return 0;
}

// A forked child gets answers instead of hangs, and the parent is not disturbed.
void forked_child() {
  World comms(2);
  Plans plans(ring, 2, 10);
  std::vector<float> data[2] = {std::vector<float>(10, 1), std::vector<float>(10, 2)};
  void* buffers[2][1] = {{data[0].data()}, {data[1].data()}};
  mccl_op* op = start(comms[0], all_reduce_desc(plans[0], buffers[0], 10, MCCL_F32));
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(in_child(comms[0], op, plans[0]));
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT_MSG(status == 0, "the child ended with %d", status);
  EXPECT(run_sync(comms[1], all_reduce_desc(plans[1], buffers[1], 10, MCCL_F32)) == MCCL_OK);
  EXPECT(finish(op) == MCCL_OK);
  EXPECT(data[0] == std::vector<float>(10, 3));
}

void recorder() {
  Options options;
  options.record_capacity = 4;
  World comms(2, options);
  Plans plans(ring, 2, 1000);
  each_rank(2, [&](int rank) {
    std::vector<float> data(1000, 1);
    void* buffers[] = {data.data()};
    for (uint64_t k = 1; k <= 6; ++k) {
      mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, 1000, MCCL_F32, MCCL_MAX);
      desc.tag = 100 + k;
      EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
    }
  });
  std::vector<float> data(1000, 1);
  void* buffers[] = {data.data()};
  mccl_op* hanging = start(comms[0], all_reduce_desc(plans[0], buffers, 1000, MCCL_F32));
  mccl_record records[8];
  until([&] {  // what it waits for can be read while it waits
    uint32_t n = mccl_comm_get_records(comms[0], records, 8);
    return n == 4 && records[3].waiting_for == 1;
  });
  EXPECT(records[3].sequence == 7 && records[3].state == 1 && records[3].completed_us == 0);
  for (uint64_t i = 0; i < 3; ++i) {
    const mccl_record& record = records[i];
    EXPECT(record.sequence == 4 + i && record.tag == 104 + i);
    EXPECT(record.collective == MCCL_ALL_REDUCE && record.dtype == MCCL_F32);
    EXPECT(record.redop == MCCL_MAX && record.count == 1000 && record.root == -1);
    EXPECT(record.state == 2);
    EXPECT(record.bytes_sent == 4000 + 40 && record.bytes_received == 4000 + 40);
    EXPECT(record.submitted_us > 0 && record.submitted_us <= record.started_us);
    EXPECT(record.started_us <= record.completed_us);
  }
  EXPECT(mccl_comm_get_records(comms[0], records, 2) == 2 && records[1].sequence == 7);
  mccl_comm_abort(comms[0], "done");
  EXPECT(finish(hanging) == MCCL_BROKEN);
  EXPECT(mccl_comm_get_records(comms[0], records, 1) == 1 && records[0].state == 3);
  mccl_stats stats{};
  mccl_comm_get_stats(comms[0], &stats);
  EXPECT(stats.operations == 7 && stats.failed == 1);
  mccl_comm_reset_stats(comms[0]);
  mccl_comm_get_stats(comms[0], &stats);
  EXPECT(stats.operations == 0 && stats.bytes_sent == 0);
}

void refused_plans() {
  PlanBuilder b(2, 0, 1);
  mccl_step step{};
  step.kind = MCCL_STEP_SEND;
  step.peer = 1;
  step.count = 5;
  auto refused = [](const mccl_step& bad, const char* why) {
    mccl_plan* plan = mccl_plan_create(2, 0, 1, nullptr, 0, &bad, 1, nullptr, 0);
    EXPECT(plan == nullptr);
    EXPECT_MSG(std::string(mccl_last_error()).find(why) != std::string::npos, "%s, not %s",
               mccl_last_error(), why);
    mccl_plan_destroy(plan);
  };
  mccl_step bad = step;
  bad.kind = 9;
  refused(bad, "unknown kind");
  bad = step;
  bad.peer = 0;
  refused(bad, "peer 0");
  bad = step;
  bad.src_buffer = 1;
  refused(bad, "buffer 1");
  bad = step;
  bad.src_offset = uint64_t{1} << 60;  // whose bytes overflow
  refused(bad, "overflows");
  bad = step;
  bad.src_offset = UINT64_MAX - 1;
  refused(bad, "overflows");
  bad = step;
  bad.n_deps = 1;
  refused(bad, "deps");
  bad = step;
  bad.count = 0;
  refused(bad, "moves nothing");
}

void refused_calls() {
  World comms(2);
  Plans plans(ring, 2, 10);
  std::vector<float> data(10);
  void* buffers[] = {data.data()};
  mccl_op_desc good = all_reduce_desc(plans[0], buffers, 10, MCCL_F32);
  auto refused = [&](const mccl_op_desc& desc, const char* why) {
    mccl_op* op = nullptr;
    EXPECT(mccl_submit(comms[0], &desc, &op) == MCCL_INVALID && op == nullptr);
    EXPECT_MSG(std::string(mccl_last_error()).find(why) != std::string::npos, "%s, not %s",
               mccl_last_error(), why);
  };
  mccl_op_desc bad = good;
  bad.redop = MCCL_NO_REDOP;
  refused(bad, "no reduce operation");
  bad = good;
  bad.redop = MCCL_BXOR;
  refused(bad, "not supported");
  bad = good;
  bad.dtype = MCCL_F16;
  bad.wire_dtype = MCCL_F32;  // wider than what it is added to
  refused(bad, "no kernel");
  bad = good;
  bad.wire_dtype = MCCL_I8;
  refused(bad, "cannot send");
  bad = good;
  bad.plan = plans[1];
  refused(bad, "rank 1");
  void* none[] = {nullptr};
  bad = good;
  bad.buffers = none;
  refused(bad, "NULL");
  bad = good;
  bad.dtype = bad.wire_dtype = MCCL_I32;
  bad.redop = MCCL_PREMUL_SUM;
  bad.premul = 0.5;
  refused(bad, "whole factor");
  mccl_p2p_desc to_self{};
  to_self.send = 1;
  mccl_op* op = nullptr;
  EXPECT(mccl_p2p(comms[0], &to_self, &op) == MCCL_INVALID);
  EXPECT(!broken(comms[0]) && !broken(comms[1]));
}

// A second link of a kind is surplus: closed, and the first works on.
void second_data_link() {
  World comms(2);
  Pair pair = socket_pair();
  EXPECT(mccl_comm_has_link(comms[0], 1, MCCL_COLLECTIVE_RX));
  EXPECT(mccl_comm_add_link(comms[0], 1, MCCL_COLLECTIVE_RX, &pair.to, 1) == MCCL_OK);
  char byte;
  EXPECT(read(pair.from, &byte, 1) == 0);
  close(pair.from);
  Plans plans(ring, 2, 10);
  each_rank(2, [&](int rank) {
    std::vector<float> data(10, 1);
    void* buffers[] = {data.data()};
    EXPECT(run_sync(comms[rank], all_reduce_desc(plans[rank], buffers, 10, MCCL_F32)) == MCCL_OK);
  });
}

}  // namespace

int main() {
  start_watchdog();
  again_and_again();
  without_handles();
  forked_child();
  recorder();
  refused_plans();
  refused_calls();
  second_data_link();
  return check::result();
}
