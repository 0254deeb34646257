#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "poller.h"

namespace mccl {

namespace {

constexpr int kMaxEvents = 64;

class EpollPoller final : public Poller {
 public:
  EpollPoller()
      : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (epoll_ >= 0 && wake_ >= 0) {
      epoll_event event{};
      event.events = EPOLLIN | EPOLLET;
      event.data.ptr = nullptr;
      ok_ = epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0;
    }
  }
  ~EpollPoller() override {
    if (epoll_ >= 0) close(epoll_);
    if (wake_ >= 0) close(wake_);
  }
  EpollPoller(const EpollPoller&) = delete;
  EpollPoller& operator=(const EpollPoller&) = delete;

  bool ok() const override { return ok_; }

  bool add(int fd, void* tag) override {
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
    event.data.ptr = tag;
    return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0;
  }

  void remove(int fd) override { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

  int wait(PollEvent* events, int capacity, int64_t timeout_us) override {
    // epoll_wait counts in milliseconds; shorter sleeps go through ppoll on the epoll itself.
    if (timeout_us > 0 && timeout_us < 1000) {
      pollfd self{epoll_, POLLIN, 0};
      timespec limit{0, static_cast<long>(timeout_us) * 1000};
      int ready = ppoll(&self, 1, &limit, nullptr);
      if (ready <= 0) return ready;
      timeout_us = 0;
    }
    std::array<epoll_event, kMaxEvents> found;
    int milliseconds =
        timeout_us < 0 ? -1 : static_cast<int>(std::min<int64_t>((timeout_us + 999) / 1000, 1 << 30));
    int n = epoll_wait(epoll_, found.data(), std::min(capacity, kMaxEvents), milliseconds);
    if (n < 0) return errno == EINTR ? -1 : 0;
    for (int i = 0; i < n; ++i) {
      uint32_t bits = found[static_cast<size_t>(i)].events;
      bool trouble = (bits & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) != 0;
      events[i] = {found[static_cast<size_t>(i)].data.ptr, trouble || (bits & EPOLLIN) != 0,
                   trouble || (bits & EPOLLOUT) != 0};
      if (events[i].tag == nullptr) {
        uint64_t count = 0;
        [[maybe_unused]] ssize_t got = read(wake_, &count, sizeof(count));
      }
    }
    return n;
  }

  void wake() override {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = write(wake_, &one, sizeof(one));
  }

 private:
  int epoll_;
  int wake_;
  bool ok_ = false;
};

}  // namespace

std::unique_ptr<Poller> make_poller() { return std::make_unique<EpollPoller>(); }

}  // namespace mccl
