// The engine: one a process, created with the first communicator and never destroyed.
//
// Theory of operation. Whoever holds drive_mutex_ is the *driver*: the only one to touch
// lanes, streams and operations. That is the progress thread, or, for a synchronous call
// that finds the engine idle, the calling thread, which saves a small collective two thread
// switches. Everybody else leaves requests in the inbox and kicks the driver.
//
// The driver goes over the lanes that have something to do and moves a piece on each: at
// most kPieceBytes, so that receiving, reducing and sending alternate while the piece is
// in cache. When nothing moved it looks at the poller, spins as long as traffic is
// expected, and then blocks.
//
// Errors: Comm::fail keeps the first one and kicks; the driver then fails the
// communicator's operations and shuts its streams. The control thread (control.h) only
// watches peers and carries bad news; it never touches operations.
#ifndef MCCL_SRC_ENGINE_H
#define MCCL_SRC_ENGINE_H

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "comm.h"
#include "control.h"
#include "op.h"
#include "poller.h"
#include "sender.h"

namespace mccl {

// Longest sleep of the driver: then it looks at everything again.
inline constexpr int64_t kMaxSleepUs = 500000;

struct Request {
  enum Kind { kOperation, kLink, kClose } kind;
  std::shared_ptr<Comm> comm;
  Op* op = nullptr;
  int32_t peer = -1;
  uint32_t channel = 0;
  std::vector<int32_t> fds;
};

class Engine {
 public:
  // nullptr in a forked child of a process that had started the engine.
  static Engine* get();

  // Queues the operation; with `sync` tries to run it here. Takes over the caller's reference
  // for the queue. Returns whether the operation has finished.
  bool submit(Op* op, bool sync);
  void post(Request request);
  void kick();

  // MCCL_OK, MCCL_BROKEN or MCCL_WAIT_TIMEOUT.
  int wait(Op* op, int64_t timeout_us);
  uint64_t wait_completion(uint64_t cursor, int64_t timeout_us);
  // Blocks until the driver let go of the communicator's memory and sockets.
  void close(const std::shared_ptr<Comm>& comm);

  Control& control() { return control_; }

 private:
  Engine();
  void run();

  // driver.cc and limits.cc: all below needs drive_mutex_.
  void drive(const Op* until);
  bool pass();
  int poll(int64_t timeout_us);
  void drain_inbox();
  void accept_link(const Request& request);
  void stall(const Op* until, int64_t stalled_since, bool* interrupted);
  int64_t next_check(int64_t now);
  void account_stall(int64_t duration);
  bool tickets_pending();
  void list_lane(Lane* lane);
  void list_comm(Comm* comm);
  void close_comm(Comm* comm);
  void check_limits(Comm* comm, int64_t now);
  bool awaits_link(const Comm* comm, int32_t peer) const;
  void check_closed_lanes(Comm* comm, int64_t now);
  bool needs(const Comm* comm, int32_t peer) const;
  void fail_operations(Comm* comm);
  void record_start(Op* op);
  bool finish_op(Op* op, OpState state);

  // collectives.cc
  void activate(Comm* comm);
  void enqueue_steps(Op* op);
  bool conflicts(const Op* earlier, const Op* later) const;
  bool make_ready(Op* op);
  bool advance_tx(Lane* lane);
  bool advance_rx(Lane* lane);
  bool send_step(Lane* lane, Op* op, uint32_t index, uint64_t limit, size_t* budget, bool* blocked);
  bool receive_step(Lane* lane, Op* op, uint32_t index, uint64_t limit, size_t* budget,
                    bool* blocked);
  bool take_header(Lane* lane, Op* op);
  bool advance_locals(Op* op);
  void after_progress(Op* op);
  void step_finished(Op* op);
  void lane_failed(Lane* lane, IoResult result, const Op* op, const char* phase);

  // messages.cc
  void begin_message(Op* op);
  bool advance_message_tx(Lane* lane);
  bool advance_message_rx(Lane* lane);
  bool read_message_header(Lane* lane);
  bool place_message(Lane* lane);
  Op* match_receive(Comm* comm, int32_t peer, uint64_t tag);
  bool deliver_parked(Op* op);
  bool message_ready(Op* op);
  void finish_receive(Comm* comm, std::unique_ptr<Message> message);
  bool deliver_waiting(Comm* comm);
  bool check_size(Comm* comm, const Message& message, Op* op);

  // Consumed tickets are raised in issue order, whatever order operations end in.
  struct TicketEntry {
    mccl_ticket ticket;
    uint64_t value;
    const Op* op;
    bool done;
  };
  void queue_tickets(Op* op);
  void raise_tickets(Op* op, size_t pieces_done, bool all);

  std::unique_ptr<Poller> poller_;
  Sender sender_;
  Control control_;

  std::mutex drive_mutex_;
  std::vector<Lane*> lanes_;   // with something to do
  std::vector<Comm*> comms_;   // with unfinished operations or a failure to handle
  std::vector<std::shared_ptr<Comm>> known_;
  std::unordered_map<void*, std::deque<TicketEntry>> tickets_;

  std::mutex inbox_mutex_;
  std::vector<Request> inbox_;
  std::atomic<bool> inbox_filled_{false};
  std::atomic<bool> driving_{false};

  std::mutex idle_mutex_;
  std::condition_variable idle_;
  bool work_ = false;

  std::mutex done_mutex_;
  std::condition_variable done_;
  uint64_t completions_ = 0;
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace mccl

#endif  // MCCL_SRC_ENGINE_H
