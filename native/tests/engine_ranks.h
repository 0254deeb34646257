// Ranks as communicators of one process, for the engine's tests: links between them over
// socket pairs, plans written out by hand, and calls that wait.
//
// All ranks share the process's one engine, as several groups of one process do.
#ifndef MCCL_TESTS_ENGINE_RANKS_H
#define MCCL_TESTS_ENGINE_RANKS_H

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "mccl.h"

// Like CHECK, from any thread.
#define EXPECT(condition) EXPECT_MSG(condition, "%s", #condition)
#define EXPECT_MSG(condition, ...)                                 \
  do {                                                             \
    bool holds_ = (condition);                                     \
    std::lock_guard<std::mutex> lock_(ranks::check_mutex);         \
    check::that(holds_, __FILE__, __LINE__, __VA_ARGS__);          \
  } while (0)

namespace ranks {

inline std::mutex check_mutex;
inline constexpr int64_t kLimitUs = 60000000;

// A test that hangs ends here instead of in CTest's limit, and says so.
inline void start_watchdog(unsigned seconds = 120) {
  std::signal(SIGALRM, [](int) {
    const char text[] = "the test hangs\n";
    [[maybe_unused]] ssize_t written = write(2, text, sizeof(text) - 1);
    _exit(1);
  });
  alarm(seconds);
}

struct Pair {
  int from;  // the sender's end
  int to;
};

inline Pair socket_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) std::abort();
  fcntl(fds[0], F_SETFD, FD_CLOEXEC);
  fcntl(fds[1], F_SETFD, FD_CLOEXEC);
  return {fds[0], fds[1]};
}

struct Options {
  uint64_t epoch = 7;
  int stray_rank = -1;  // this one belongs to another epoch
  int64_t peer_timeout_us = 60000000;
  uint64_t park_bytes = 1 << 20;
  uint64_t spin_us = 0;
  bool checksum = false;
  uint32_t rails = 1;
  uint32_t record_capacity = 64;
  bool send_thread = false;
  bool control = true;
  // Makes one connection of a data link; tests put their own wire between the two ends.
  std::function<Pair(int from, int to, uint32_t tx_channel)> connect;
};

class World {
 public:
  explicit World(int size, Options options = Options()) : options_(std::move(options)) {
    for (int rank = 0; rank < size; ++rank) {
      mccl_comm_config config{};
      config.rank = rank;
      config.size = size;
      config.epoch = options_.epoch + (rank == options_.stray_rank ? 1 : 0);
      config.peer_timeout_us = options_.peer_timeout_us;
      config.park_bytes = options_.park_bytes;
      config.spin_us = options_.spin_us;
      config.yield_spin = 1;
      config.checksum = options_.checksum;
      config.record_capacity = options_.record_capacity;
      config.send_thread = options_.send_thread;
      std::strcpy(config.name, "test");
      comms_.push_back(mccl_comm_create(&config));
      if (comms_.back() == nullptr) std::abort();
    }
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b < size; ++b) {
        if (a == b) continue;
        link(a, b, MCCL_COLLECTIVE_TX, MCCL_COLLECTIVE_RX);
        link(a, b, MCCL_P2P_TX, MCCL_P2P_RX);
        if (a < b && options_.control) control(a, b);
      }
    }
  }
  ~World() {
    for (size_t rank = 0; rank < comms_.size(); ++rank) destroy(static_cast<int>(rank));
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  mccl_comm* operator[](int rank) const { return comms_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(comms_.size()); }
  void destroy(int rank) {
    mccl_comm*& comm = comms_[static_cast<size_t>(rank)];
    mccl_comm_destroy(comm);
    comm = nullptr;
  }
  void control(int a, int b) {
    Pair pair = socket_pair();
    mccl_comm_add_link((*this)[a], b, MCCL_CONTROL, &pair.from, 1);
    mccl_comm_add_link((*this)[b], a, MCCL_CONTROL, &pair.to, 1);
  }

 private:
  void link(int a, int b, uint32_t tx, uint32_t rx) {
    std::vector<int32_t> from;
    std::vector<int32_t> to;
    for (uint32_t rail = 0; rail < options_.rails; ++rail) {
      Pair pair = options_.connect ? options_.connect(a, b, tx) : socket_pair();
      from.push_back(pair.from);
      to.push_back(pair.to);
    }
    mccl_comm_add_link((*this)[a], b, tx, from.data(), options_.rails);
    mccl_comm_add_link((*this)[b], a, rx, to.data(), options_.rails);
  }

  Options options_;
  std::vector<mccl_comm*> comms_;
};

// body(rank) on a thread each.
inline void each_rank(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

// ---- plans --------------------------------------------------------------

class PlanBuilder {
 public:
  struct Where {
    uint32_t buffer;
    uint64_t offset;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  PlanBuilder(int world, int rank, uint32_t n_external)
      : world_(world), rank_(rank), n_external_(n_external) {}

  uint32_t scratch(uint64_t count, bool accumulate) {
    scratch_.push_back({count, accumulate, 0});
    return n_external_ + static_cast<uint32_t>(scratch_.size()) - 1;
  }
  // Waits element by element for `stream`; kNone among them is skipped.
  uint32_t send(int peer, Where src, uint64_t count, std::vector<uint32_t> stream = {},
                uint32_t kind = MCCL_DEP_STREAM) {
    return add(MCCL_STEP_SEND, 0, peer, {0, 0}, src, count, stream, kind);
  }
  uint32_t recv(int peer, Where dst, uint64_t count, std::vector<uint32_t> stream = {}) {
    return add(MCCL_STEP_RECV, 0, peer, dst, {0, 0}, count, stream, MCCL_DEP_STREAM);
  }
  uint32_t recv_reduce(int peer, Where dst, Where src, uint64_t count,
                       std::vector<uint32_t> stream, uint8_t flags) {
    return add(MCCL_STEP_RECV_REDUCE, flags, peer, dst, src, count, stream, MCCL_DEP_STREAM);
  }
  uint32_t local(uint8_t kind, Where dst, Where src, uint64_t count, std::vector<uint32_t> stream,
                 uint8_t flags) {
    return add(kind, flags, -1, dst, src, count, stream, MCCL_DEP_STREAM);
  }
  mccl_plan* build() const {
    return mccl_plan_create(world_, rank_, n_external_, scratch_.data(),
                            static_cast<uint32_t>(scratch_.size()), steps_.data(),
                            static_cast<uint32_t>(steps_.size()), deps_.data(),
                            static_cast<uint32_t>(deps_.size()));
  }

 private:
  uint32_t add(uint8_t kind, uint8_t flags, int peer, Where dst, Where src, uint64_t count,
               const std::vector<uint32_t>& deps, uint32_t dep_kind) {
    if (count == 0) return kNone;
    mccl_step step{};
    step.kind = kind;
    step.flags = flags;
    step.peer = peer;
    step.dst_buffer = dst.buffer;
    step.dst_offset = dst.offset;
    step.src_buffer = src.buffer;
    step.src_offset = src.offset;
    step.count = count;
    step.first_dep = static_cast<uint32_t>(deps_.size());
    for (uint32_t dep : deps) {
      if (dep != kNone) deps_.push_back({dep, dep_kind});
    }
    step.n_deps = static_cast<uint32_t>(deps_.size()) - step.first_dep;
    steps_.push_back(step);
    return static_cast<uint32_t>(steps_.size()) - 1;
  }

  int world_, rank_;
  uint32_t n_external_;
  std::vector<mccl_scratch> scratch_;
  std::vector<mccl_step> steps_;
  std::vector<mccl_dep> deps_;
};

inline uint64_t chunk_begin(uint64_t count, int world, int chunk) {
  return count * static_cast<uint64_t>(chunk) / static_cast<uint64_t>(world);
}

// Ring all-reduce, in place in external 0.
inline mccl_plan* ring(int world, int rank, uint64_t count) {
  PlanBuilder b(world, rank, 1);
  auto chunk = [&](int i) { return ((i % world) + world) % world; };
  auto where = [&](int i) { return PlanBuilder::Where{0, chunk_begin(count, world, chunk(i))}; };
  auto size = [&](int i) {
    return chunk_begin(count, world, chunk(i) + 1) - chunk_begin(count, world, chunk(i));
  };
  int next = (rank + 1) % world;
  int before = (rank + world - 1) % world;
  std::vector<uint32_t> sent(static_cast<size_t>(world), PlanBuilder::kNone);
  uint32_t got = PlanBuilder::kNone;
  for (int s = 0; s < world - 1; ++s) {
    sent[static_cast<size_t>(chunk(rank - s))] = b.send(next, where(rank - s), size(rank - s), {got});
    uint8_t flags = s == world - 2 ? MCCL_STEP_FINAL : 0;
    int c = rank - s - 1;
    got = b.recv_reduce(before, where(c), where(c), size(c), {}, flags);
  }
  for (int s = 0; s < world - 1; ++s) {
    b.send(next, where(rank + 1 - s), size(rank + 1 - s), {got});
    int c = rank - s;  // write-after-read: its partial sum must have left
    got = b.recv(before, where(c), size(c), {sent[static_cast<size_t>(chunk(c))]});
  }
  return b.build();
}

// Recursive doubling for powers of two, in place: reduces into what it is still sending.
inline mccl_plan* doubling(int world, int rank, uint64_t count) {
  PlanBuilder b(world, rank, 1);
  uint32_t got = PlanBuilder::kNone;
  for (int distance = 1; distance < world; distance *= 2) {
    int peer = rank ^ distance;
    uint32_t sent = b.send(peer, {0, 0}, count, {got});
    uint8_t flags = peer < rank ? MCCL_STEP_INCOMING_FIRST : 0;
    if (distance * 2 >= world) flags |= MCCL_STEP_FINAL;
    got = b.recv_reduce(peer, {0, 0}, {0, 0}, count, {got, sent}, flags);
  }
  return b.build();
}

// Direct reduce-scatter of external 0 into external 1, summed in an accumulator in rank order.
inline mccl_plan* direct_reduce_scatter(int world, int rank, uint64_t each) {
  PlanBuilder b(world, rank, 2);
  auto begin = [&](int r) { return PlanBuilder::Where{0, each * static_cast<uint64_t>(r)}; };
  for (int k = 1; k < world; ++k) {
    int peer = (rank + k) % world;
    b.send(peer, begin(peer), each);
  }
  PlanBuilder::Where total{b.scratch(each, true), 0};
  uint32_t done;
  if (rank == 0) {
    done = b.local(MCCL_STEP_COPY, total, begin(0), each, {}, 0);
  } else {
    PlanBuilder::Where first{b.scratch(each, false), 0};
    done = b.local(MCCL_STEP_COPY, total, first, each, {b.recv(0, first, each)}, 0);
  }
  for (int peer = 1; peer < world; ++peer) {
    if (peer == rank) {
      done = b.local(MCCL_STEP_REDUCE, total, begin(rank), each, {done}, 0);
    } else {
      done = b.recv_reduce(peer, total, total, each, {done}, 0);
    }
  }
  b.local(MCCL_STEP_COPY, {1, 0}, total, each, {done}, MCCL_STEP_FINAL);
  return b.build();
}

using MakePlan = mccl_plan* (*)(int world, int rank, uint64_t count);

// One plan a rank.
class Plans {
 public:
  Plans(MakePlan make, int world, uint64_t count) {
    for (int rank = 0; rank < world; ++rank) {
      plans_.push_back(make(world, rank, count));
      if (plans_.back() == nullptr) {
        std::fprintf(stderr, "plan: %s\n", mccl_last_error());
        std::abort();
      }
    }
  }
  ~Plans() {
    for (mccl_plan* plan : plans_) mccl_plan_destroy(plan);
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;
  const mccl_plan* operator[](int rank) const { return plans_[static_cast<size_t>(rank)]; }

 private:
  std::vector<mccl_plan*> plans_;
};

// ---- calls --------------------------------------------------------------

inline mccl_op_desc all_reduce_desc(const mccl_plan* plan, void* const* buffers, uint64_t count,
                                    uint32_t dtype, uint32_t redop = MCCL_SUM) {
  mccl_op_desc desc{};
  desc.collective = MCCL_ALL_REDUCE;
  desc.dtype = dtype;
  desc.wire_dtype = dtype;
  desc.redop = redop;
  desc.root = -1;
  desc.count = count;
  desc.plan = plan;
  desc.buffers = buffers;
  desc.premul = 1.0;
  desc.timeout_us = kLimitUs;
  return desc;
}

// Status of the operation's end; releases it.
inline int finish(mccl_op* op) {
  int status = mccl_op_wait(op, -1);
  mccl_op_release(op);
  return status;
}

inline int run_sync(mccl_comm* comm, mccl_op_desc desc) {
  desc.flags = MCCL_OP_SYNC;
  mccl_op* op = nullptr;
  int status = mccl_submit(comm, &desc, &op);
  return status == MCCL_PENDING ? finish(op) : status;
}

// nullptr when refused.
inline mccl_op* start(mccl_comm* comm, const mccl_op_desc& desc) {
  mccl_op* op = nullptr;
  return mccl_submit(comm, &desc, &op) == MCCL_OK ? op : nullptr;
}

inline mccl_op* message(mccl_comm* comm, bool send, int peer, void* buffer, uint64_t bytes,
                        uint64_t tag, int64_t timeout_us = kLimitUs) {
  mccl_p2p_desc desc{};
  desc.send = send;
  desc.peer = peer;
  desc.bytes = bytes;
  desc.buffer = buffer;
  desc.tag = tag;
  desc.dtype = MCCL_U8;
  desc.timeout_us = timeout_us;
  mccl_op* op = nullptr;
  return mccl_p2p(comm, &desc, &op) == MCCL_OK ? op : nullptr;
}

inline mccl_error error_of(mccl_comm* comm) {
  mccl_error error{};
  mccl_comm_error(comm, &error);
  return error;
}

inline bool broken(mccl_comm* comm) {
  mccl_error error{};
  return mccl_comm_error(comm, &error) == MCCL_BROKEN;
}

inline bool mentions(const mccl_error& error, const std::string& text) {
  return std::string(error.message).find(text) != std::string::npos;
}

// Until the condition holds; the watchdog ends a wait for what never comes.
inline void until(const std::function<bool()>& condition) {
  uint64_t cursor = 0;
  while (!condition()) cursor = mccl_wait_completion(cursor, 1000);
}

// splitmix64: the same values everywhere.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
};

}  // namespace ranks

#endif  // MCCL_TESTS_ENGINE_RANKS_H
