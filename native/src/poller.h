// Readiness of sockets behind one interface: epoll on Linux, kqueue on macOS and BSD.
//
// Edge-triggered both ways: an event says "became readable or writable since the last
// time you were told", so the owner of a socket keeps the readiness it was told of until
// a call would block. One registration a socket, no system call to change interest.
#ifndef MCCL_SRC_POLLER_H
#define MCCL_SRC_POLLER_H

#include <cstdint>
#include <memory>

namespace mccl {

struct PollEvent {
  void* tag;  // as given to add(); nullptr for wake()
  bool readable;
  bool writable;
};

class Poller {
 public:
  virtual ~Poller() = default;
  // False: the system refused (errno is set).
  virtual bool add(int fd, void* tag) = 0;
  virtual void remove(int fd) = 0;
  // Number of events, 0 when the time passed, -1 when a signal came. timeout_us < 0 waits
  // for ever, 0 only looks.
  virtual int wait(PollEvent* events, int capacity, int64_t timeout_us) = 0;
  // Ends a wait of another thread, now or the next one.
  virtual void wake() = 0;
  virtual bool ok() const = 0;
};

std::unique_ptr<Poller> make_poller();

}  // namespace mccl

#endif  // MCCL_SRC_POLLER_H
