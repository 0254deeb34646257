// A second pair of hands for big sends.
//
// One thread that only sends: while it copies a piece into the kernel the driver receives
// and reduces the next one. It serves one stream at a time (a ring has one that matters);
// when it is busy the driver sends by itself. Used where a rank has cores to spare.
//
// All but the thread itself belongs to the driver.
#ifndef MCCL_SRC_SENDER_H
#define MCCL_SRC_SENDER_H

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "poller.h"

namespace mccl {

inline constexpr size_t kOffloadBytes = 64 * 1024;  // smaller sends are not worth the handover

class Sender {
 public:
  // Wakes `poller` when bytes have gone.
  explicit Sender(Poller* poller) : poller_(poller) {}

  // The memory must stay as it is until collect() has reported it sent or release() returned.
  bool begin(const void* owner, int fd, const iovec* parts, int n);
  bool serves(const void* owner) const { return owner_ == owner; }
  // Bytes sent since the last call; *error is an errno, 0 while all is well; *busy: more to come.
  size_t collect(int* error, bool* busy);
  // Lets go of the owner's memory and socket; waits for the thread to do so.
  void release(const void* owner);

 private:
  void run();
  void await_task();
  bool send_some();

  Poller* poller_;
  const void* owner_ = nullptr;
  bool started_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> active_{false};
  bool cancelled_ = false;
  int fd_ = -1;
  std::array<iovec, 2> parts_{};
  size_t part_ = 0;
  size_t n_parts_ = 0;
  size_t sent_ = 0;
  size_t reported_ = 0;
  int error_ = 0;
};

}  // namespace mccl

#endif  // MCCL_SRC_SENDER_H
