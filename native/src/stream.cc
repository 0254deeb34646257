#include "stream.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "reduce.h"

namespace mccl {

namespace {

// At 10 Gbit/s a wake-up every 26 µs instead of one a packet.
constexpr size_t kMouthful = 32 * 1024;
constexpr uint32_t kFrameMagic = 0x4d434631;  // "MCF1"
#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // macOS: SO_NOSIGPIPE is set in open()
#endif

// ENOBUFS: macOS runs short of mbufs on big sends; it is a "not now", like EAGAIN.
bool not_now(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

}  // namespace

Stream::~Stream() {
  if (sender_ != nullptr) sender_->release(this);
  for (auto& rail : rails_) {
    if (poller_ != nullptr) poller_->remove(rail->fd);
    close(rail->fd);
  }
}

bool Stream::open(const int32_t* fds, uint32_t n, bool checksum, Poller* poller) {
  poller_ = poller;
  checksum_ = checksum;
  framed_ = checksum || n > 1;
  bool ok = true;
  for (uint32_t i = 0; i < n; ++i) {
    auto rail = std::make_unique<Rail>();
    rail->fd = fds[i];
    fcntl(rail->fd, F_SETFL, fcntl(rail->fd, F_GETFL) | O_NONBLOCK);
#ifdef SO_NOSIGPIPE
    int one = 1;
    setsockopt(rail->fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof(one));
#endif
    if (framed_) rail->buffer.reset(new char[sizeof(Frame) + kPieceBytes]);
    ok = poller->add(rail->fd, rail.get()) && ok;
    rails_.push_back(std::move(rail));
  }
  return ok;
}

void Stream::shut() {
  for (auto& rail : rails_) shutdown(rail->fd, SHUT_RDWR);
  if (sender_ != nullptr) sender_->release(this);
}

IoResult Stream::failed(int error) {
  error_ = error;
  return error == 0 || error == EPIPE || error == ECONNRESET ? IoResult::kClosed
                                                             : IoResult::kFailed;
}

IoResult Stream::send(const iovec* parts, int n, size_t* moved) {
  *moved = 0;
  if (!framed_) return send_plain(parts, n, moved);
  IoResult result = flush();
  if (result != IoResult::kMoved && result != IoResult::kBlocked) return result;
  size_t part = 0;
  size_t within = 0;
  for (auto& rail : rails_) {
    if (rail->filled != 0) continue;  // still busy with its last frame
    size_t length = 0;
    char* payload = rail->buffer.get() + sizeof(Frame);
    while (part < static_cast<size_t>(n) && length < kPieceBytes) {
      size_t take = std::min(parts[part].iov_len - within, kPieceBytes - length);
      std::memcpy(payload + length, static_cast<const char*>(parts[part].iov_base) + within, take);
      length += take;
      within += take;
      if (within == parts[part].iov_len) {
        ++part;
        within = 0;
      }
    }
    if (length == 0) break;
    Frame frame{kFrameMagic, static_cast<uint32_t>(length), offset_,
                checksum_ ? crc32c(0, payload, length) : 0, 0};
    frame.header_crc = crc32c(0, &frame, offsetof(Frame, header_crc));
    std::memcpy(rail->buffer.get(), &frame, sizeof(frame));
    rail->filled = sizeof(frame) + length;
    rail->moved = 0;
    offset_ += length;
    *moved += length;
    result = push(*rail);
    if (result != IoResult::kMoved && result != IoResult::kBlocked) return result;
  }
  return *moved != 0 ? IoResult::kMoved : IoResult::kBlocked;
}

// Hands a big send to the sender's thread and reports later what it has sent. The caller
// asks again from the first byte not reported, so nothing of it moves meanwhile.
IoResult Stream::send_offloaded(const iovec* parts, int n, size_t* moved, bool* taken) {
  *taken = true;
  if (sender_->serves(this)) {
    int error = 0;
    bool busy = false;
    *moved = sender_->collect(&error, &busy);
    if (*moved > 0) return IoResult::kMoved;
    if (error != 0) return failed(error);
    if (busy) return IoResult::kBlocked;
  }
  size_t total = 0;
  for (int i = 0; i < n; ++i) total += parts[i].iov_len;
  if (total >= kOffloadBytes && sender_->begin(this, rails_.front()->fd, parts, n)) {
    return IoResult::kBlocked;
  }
  *taken = false;
  return IoResult::kBlocked;
}

IoResult Stream::send_plain(const iovec* parts, int n, size_t* moved) {
  Rail& rail = *rails_.front();
  if (sender_ != nullptr) {
    bool taken = false;
    IoResult result = send_offloaded(parts, n, moved, &taken);
    if (taken) return result;
  }
  if (!rail.writable) return IoResult::kBlocked;
  ssize_t sent;
  do {
    if (n == 1) {
      sent = ::send(rail.fd, parts[0].iov_base, parts[0].iov_len, kSendFlags);
    } else {
      msghdr message{};
      message.msg_iov = const_cast<iovec*>(parts);
      message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(n);
      sent = sendmsg(rail.fd, &message, kSendFlags);
    }
  } while (sent < 0 && errno == EINTR);
  short_of_buffers_ = sent < 0 && errno == ENOBUFS;
  if (sent > 0) {
    *moved = static_cast<size_t>(sent);
    return IoResult::kMoved;
  }
  if (sent < 0 && not_now(errno)) {
    rail.writable = short_of_buffers_;
    return IoResult::kBlocked;
  }
  return failed(sent < 0 ? errno : EPIPE);
}

IoResult Stream::push(Rail& rail) {
  while (rail.moved < rail.filled) {
    if (!rail.writable) return IoResult::kBlocked;
    ssize_t sent =
        ::send(rail.fd, rail.buffer.get() + rail.moved, rail.filled - rail.moved, kSendFlags);
    short_of_buffers_ = sent < 0 && errno == ENOBUFS;
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (!not_now(errno)) return failed(errno);
      rail.writable = short_of_buffers_;
      return IoResult::kBlocked;
    }
    rail.moved += static_cast<size_t>(sent);
  }
  rail.filled = rail.moved = 0;
  return IoResult::kMoved;
}

bool Stream::flushed() const {
  return std::all_of(rails_.begin(), rails_.end(),
                     [this](const auto& rail) { return !framed_ || rail->filled == 0; });
}

IoResult Stream::flush() {
  IoResult overall = IoResult::kMoved;
  for (auto& rail : rails_) {
    if (rail->filled == 0) continue;
    IoResult result = push(*rail);
    if (result == IoResult::kBlocked) {
      overall = result;
    } else if (result != IoResult::kMoved) {
      return result;
    }
  }
  return overall;
}

IoResult Stream::receive(iovec* parts, int n, size_t* moved) {
  *moved = 0;
  if (!framed_) return receive_plain(parts, n, moved);
  size_t part = 0;
  size_t within = 0;
  IoResult worst = IoResult::kBlocked;
  size_t ended = 0;
  size_t ahead = 0;  // rails whose next frame is not the one due
  for (bool again = true; again && part < static_cast<size_t>(n);) {
    again = false;
    ahead = 0;
    for (auto& rail : rails_) {
      bool whole = false;
      IoResult result = pull(*rail, &whole);
      if (result == IoResult::kCorrupt) return result;
      if (result != IoResult::kMoved && result != IoResult::kBlocked) worst = result;
      if (!whole) continue;
      Frame frame;
      std::memcpy(&frame, rail->buffer.get(), sizeof(frame));
      if (frame.offset + rail->moved < offset_) return IoResult::kCorrupt;  // delivered already
      if (frame.offset + rail->moved != offset_) {  // a slower rail has what comes first
        ++ahead;
        continue;
      }
      while (part < static_cast<size_t>(n) && rail->moved < frame.length) {
        size_t take = std::min(parts[part].iov_len - within, frame.length - rail->moved);
        std::memcpy(static_cast<char*>(parts[part].iov_base) + within,
                    rail->buffer.get() + sizeof(frame) + rail->moved, take);
        rail->moved += take;
        offset_ += take;
        *moved += take;
        within += take;
        if (within == parts[part].iov_len) {
          ++part;
          within = 0;
        }
      }
      if (rail->moved == frame.length) {
        rail->filled = rail->moved = 0;
        again = true;
      }
    }
  }
  if (*moved != 0) return IoResult::kMoved;
  for (auto& rail : rails_) ended += rail->ended;
  // What is due can come by no rail: the sender never sent it, or died before it did.
  if (ahead == rails_.size()) return IoResult::kCorrupt;
  // Rails end one by one, in no order: until the last has, bytes may still arrive.
  return ended + ahead == rails_.size() ? failed(0) : worst;
}

IoResult Stream::receive_plain(iovec* parts, int n, size_t* moved) {
  Rail& rail = *rails_.front();
  if (!rail.readable) return IoResult::kBlocked;
  ssize_t got;
  do {  // an interrupted call is made again: no event would follow it
    got = n == 1 ? recv(rail.fd, parts[0].iov_base, parts[0].iov_len, 0) : readv(rail.fd, parts, n);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    *moved = static_cast<size_t>(got);
    return IoResult::kMoved;
  }
  if (got == 0) return failed(0);
  if (not_now(errno)) {
    rail.readable = false;
    return IoResult::kBlocked;
  }
  return failed(errno);
}

void Stream::expect(size_t bytes) {
  if (framed_ || rails_.empty()) return;
  // Never more than is to come, or the wait would have no end.
  int wanted = bytes >= 4 * kMouthful ? static_cast<int>(kMouthful) : 1;
  if (wanted == mouthful_) return;
  mouthful_ = wanted;
  Rail& rail = *rails_.front();
  setsockopt(rail.fd, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
  // What lies there already may be enough by the new measure, and no event would say so.
  if (wanted == 1) rail.readable = true;
}

void Stream::look_again() {
  for (auto& rail : rails_) rail->readable = rail->writable = true;
}

// Reads on until the rail's buffer holds one whole, checked frame.
IoResult Stream::pull(Rail& rail, bool* whole) {
  for (;;) {
    Frame frame{};
    size_t want = sizeof(frame);
    if (rail.filled >= sizeof(frame)) {
      std::memcpy(&frame, rail.buffer.get(), sizeof(frame));
      want += frame.length;
    }
    if (rail.filled == want && want > sizeof(frame)) {
      *whole = true;
      return IoResult::kMoved;
    }
    if (!rail.readable || rail.ended) return IoResult::kBlocked;
    ssize_t got = recv(rail.fd, rail.buffer.get() + rail.filled, want - rail.filled, 0);
    if (got == 0 && rail.filled == 0) {
      rail.ended = true;
      return IoResult::kBlocked;
    }
    if (got == 0) return failed(0);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (!not_now(errno)) return failed(errno);
      rail.readable = false;
      return IoResult::kBlocked;
    }
    rail.filled += static_cast<size_t>(got);
    if (rail.filled == sizeof(frame)) {
      std::memcpy(&frame, rail.buffer.get(), sizeof(frame));
      bool sane = frame.magic == kFrameMagic && frame.length > 0 && frame.length <= kPieceBytes &&
                  frame.header_crc == crc32c(0, &frame, offsetof(Frame, header_crc));
      if (!sane) return IoResult::kCorrupt;
    } else if (rail.filled > sizeof(frame) && rail.filled == want && checksum_ &&
               frame.crc != crc32c(0, rail.buffer.get() + sizeof(frame), frame.length)) {
      return IoResult::kCorrupt;
    }
  }
}

}  // namespace mccl
