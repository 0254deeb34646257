#include "sender.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "util.h"

namespace mccl {

namespace {

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;
#endif
constexpr size_t kBite = 256 * 1024;  // between reports
constexpr int kPollMs = 50;
// A ring hands over the next piece within this while it is under way; going to sleep and being
// woken for each would cost more than the send.
constexpr int64_t kSpinUs = 100;

}  // namespace

bool Sender::begin(const void* owner, int fd, const iovec* parts, int n) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (active_ || (owner_ != nullptr && owner_ != owner)) return false;
  if (!started_) {
    started_ = true;
    start_thread([this] { run(); });
  }
  owner_ = owner;
  fd_ = fd;
  n_parts_ = static_cast<size_t>(n);
  for (size_t i = 0; i < n_parts_; ++i) parts_[i] = parts[i];
  part_ = 0;
  sent_ = reported_ = 0;
  error_ = 0;
  cancelled_ = false;
  active_ = true;
  changed_.notify_all();
  return true;
}

size_t Sender::collect(int* error, bool* busy) {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t fresh = sent_ - reported_;
  reported_ = sent_;
  *error = error_;
  *busy = active_;
  if (!active_ && fresh == 0) owner_ = nullptr;
  return fresh;
}

void Sender::release(const void* owner) {
  if (owner_ != owner) return;
  std::unique_lock<std::mutex> lock(mutex_);
  cancelled_ = true;
  changed_.wait(lock, [this] { return !active_.load(); });
  owner_ = nullptr;
}

// One send, outside the lock. True while the task goes on.
bool Sender::send_some() {
  iovec piece = parts_[part_];
  if (piece.iov_len > kBite) piece.iov_len = kBite;
  ssize_t sent = ::send(fd_, piece.iov_base, piece.iov_len, kSendFlags);
  int error = sent < 0 ? errno : 0;
  if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) {
    pollfd wanted{fd_, POLLOUT, 0};
    poll(&wanted, 1, error == ENOBUFS ? 1 : kPollMs);
    error = EINTR;  // not a failure: look again
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (sent > 0) {
    sent_ += static_cast<size_t>(sent);
    iovec& part = parts_[part_];
    part.iov_base = static_cast<char*>(part.iov_base) + sent;
    part.iov_len -= static_cast<size_t>(sent);
    if (part.iov_len == 0) ++part_;
  } else if (error != EINTR) {
    error_ = error != 0 ? error : EPIPE;
  }
  bool over = cancelled_ || error_ != 0 || part_ == n_parts_;
  if (over) {
    active_ = false;
    changed_.notify_all();
  }
  return !over;
}

void Sender::await_task() {
  int64_t begun = now_us();
  for (int tries = 0; !active_.load(std::memory_order_acquire); ++tries) {
    if (tries % 64 == 0 && now_us() - begun > kSpinUs) break;
  }
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return active_.load(); });
}

void Sender::run() {
  for (;;) {
    await_task();
    for (bool more = true; more;) {
      more = send_some();
      poller_->wake();
    }
  }
}

}  // namespace mccl
