#include <fcntl.h>
#include <sys/event.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "poller.h"

namespace mccl {

namespace {

constexpr int kMaxEvents = 64;
constexpr uintptr_t kWakeIdent = 1;

class KqueuePoller final : public Poller {
 public:
  KqueuePoller() : queue_(kqueue()) {
    if (queue_ >= 0) {
      fcntl(queue_, F_SETFD, FD_CLOEXEC);
      struct kevent change;
      EV_SET(&change, kWakeIdent, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0, nullptr);
      ok_ = kevent(queue_, &change, 1, nullptr, 0, nullptr) == 0;
    }
  }
  ~KqueuePoller() override {
    if (queue_ >= 0) close(queue_);
  }
  KqueuePoller(const KqueuePoller&) = delete;
  KqueuePoller& operator=(const KqueuePoller&) = delete;

  bool ok() const override { return ok_; }

  bool add(int fd, void* tag) override {
    struct kevent changes[2];
    EV_SET(&changes[0], static_cast<uintptr_t>(fd), EVFILT_READ, EV_ADD | EV_CLEAR, 0, 0, tag);
    EV_SET(&changes[1], static_cast<uintptr_t>(fd), EVFILT_WRITE, EV_ADD | EV_CLEAR, 0, 0, tag);
    return kevent(queue_, changes, 2, nullptr, 0, nullptr) == 0;
  }

  void remove(int fd) override {
    struct kevent changes[2];
    EV_SET(&changes[0], static_cast<uintptr_t>(fd), EVFILT_READ, EV_DELETE, 0, 0, nullptr);
    EV_SET(&changes[1], static_cast<uintptr_t>(fd), EVFILT_WRITE, EV_DELETE, 0, 0, nullptr);
    kevent(queue_, changes, 2, nullptr, 0, nullptr);
  }

  int wait(PollEvent* events, int capacity, int64_t timeout_us) override {
    std::array<struct kevent, kMaxEvents> found;
    timespec limit{static_cast<time_t>(timeout_us / 1000000),
                   static_cast<long>(timeout_us % 1000000) * 1000};
    int n = kevent(queue_, nullptr, 0, found.data(), std::min(capacity, kMaxEvents),
                   timeout_us < 0 ? nullptr : &limit);
    if (n < 0) return errno == EINTR ? -1 : 0;
    for (int i = 0; i < n; ++i) {
      const struct kevent& event = found[static_cast<size_t>(i)];
      if (event.filter == EVFILT_USER) {
        events[i] = {nullptr, true, true};
        continue;
      }
      bool ended = (event.flags & (EV_EOF | EV_ERROR)) != 0;
      events[i] = {event.udata, ended || event.filter == EVFILT_READ,
                   ended || event.filter == EVFILT_WRITE};
    }
    return n;
  }

  void wake() override {
    struct kevent change;
    EV_SET(&change, kWakeIdent, EVFILT_USER, 0, NOTE_TRIGGER, 0, nullptr);
    kevent(queue_, &change, 1, nullptr, 0, nullptr);
  }

 private:
  int queue_;
  bool ok_ = false;
};

}  // namespace

std::unique_ptr<Poller> make_poller() { return std::make_unique<KqueuePoller>(); }

}  // namespace mccl
