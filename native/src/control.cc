#include "control.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm.h"
#include "engine.h"
#include "util.h"

namespace mccl {

namespace {

enum : uint32_t { kPing = 1, kPong = 2, kAbort = 3, kGoodbye = 4 };

struct ControlFrame {
  uint32_t magic;
  uint32_t type;
  uint32_t size;
  uint32_t reserved;
};
constexpr uint32_t kControlMagic = 0x4d434b31;  // "MCK1"
constexpr size_t kMaxBody = 2048;
constexpr size_t kMostOutgoing = 4096;  // unsent, before answers are left out
constexpr int64_t kLingerUs = 2000000;

Beat beat_of(Comm* comm) {
  return {comm->issued, comm->completed, comm->current, 0, comm->copy_front()};
}

bool names_collective(uint32_t collective) {
  return collective <= MCCL_RECV || collective == 255;
}

// What another rank tells is shown to users and used as an index: it must be what a rank can say.
bool makes_sense(const mccl_error& error, int32_t size) {
  auto names_rank = [size](int32_t rank) { return rank >= -1 && rank < size; };
  return error.failure > MCCL_FAIL_NONE && error.failure <= MCCL_FAIL_INTERNAL &&
         names_rank(error.culprit) && names_rank(error.reporter) &&
         names_collective(error.collective);
}

#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;
#endif

}  // namespace

Control::Control() : poller_(make_poller()) {}

void Control::add(std::shared_ptr<Comm> comm, int32_t peer, int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
#ifdef SO_NOSIGPIPE
  int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof(one));
#endif
  auto link = std::make_unique<Link>();
  link->peer = peer;
  link->fd = fd;
  PeerInfo& info = *comm->peers[static_cast<size_t>(peer)];
  info.last_heard = now_us();
  info.controls.fetch_add(1);
  std::lock_guard<std::mutex> lock(mutex_);
  // A quarter of the shortest patience, so that several beats fit into it.
  tick_us_ = std::clamp<int64_t>(comm->config.peer_timeout_us / 4, 20000, tick_us_.load());
  link->comm = comm;
  bool watched = poller_->add(fd, link.get());
  links_.push_back(std::move(link));
  poller_->wake();
  if (!watched) {
    comm->fail(MCCL_FAIL_INTERNAL, peer, nullptr, "connect",
               "the system refused to watch a socket");
  }
}

void Control::spread(Comm*) { poller_->wake(); }

void Control::goodbye(Comm* comm) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& link : links_) {
    if (link->comm.get() != comm || link->closing || link->ended) continue;
    if (comm->broken && !link->abort_sent) {
      std::lock_guard<std::mutex> error_lock(comm->error_mutex);
      say(link.get(), kAbort, &comm->first_error, sizeof(mccl_error));
      link->abort_sent = true;
    }
    say(link.get(), kGoodbye, nullptr, 0);
    flush(link.get());
    link->closing = true;
    link->closing_at = now_us();
    if (link->heard_goodbye && link->outgoing.empty()) end(link.get());
  }
  poller_->wake();
}

void Control::say(Link* link, uint32_t type, const void* body, size_t size) {
  ControlFrame frame{kControlMagic, type, static_cast<uint32_t>(size), 0};
  link->outgoing.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
  link->outgoing.append(static_cast<const char*>(body), size);
}

void Control::beat(Link* link) {
  Comm& comm = *link->comm;
  Beat body = beat_of(&comm);
  say(link, kPing, &body, sizeof(body));
}

void Control::flush(Link* link) {
  while (!link->outgoing.empty() && !link->ended) {
    ssize_t sent = ::send(link->fd, link->outgoing.data(), link->outgoing.size(), kSendFlags);
    if (sent > 0) {
      link->outgoing.erase(0, static_cast<size_t>(sent));
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) {
      return;
    } else if (sent < 0 && errno != EINTR) {
      return;  // the receiving side tells what happened
    }
  }
}

void Control::read_link(Link* link) {
  char chunk[4096];
  while (!link->ended) {
    ssize_t got = recv(link->fd, chunk, sizeof(chunk), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) {
      lost(link);
      return;
    }
    link->comm->peers[static_cast<size_t>(link->peer)]->last_heard = now_us();
    link->asked_at = 0;
    link->incoming.append(chunk, static_cast<size_t>(got));
    size_t at = 0;
    ControlFrame frame;
    // A goodbye may end the link; what follows it means nothing any more.
    while (!link->ended && link->incoming.size() - at >= sizeof(frame)) {
      std::memcpy(&frame, link->incoming.data() + at, sizeof(frame));
      bool sane = frame.magic == kControlMagic && frame.size <= kMaxBody;
      if (sane && link->incoming.size() - at < sizeof(frame) + frame.size) break;
      const char* body = link->incoming.data() + at + sizeof(frame);
      if (!sane || !handle(link, frame.type, body, frame.size)) {
        link->comm->fail(MCCL_FAIL_CORRUPT, link->peer, nullptr, "idle",
                         "control link carries bytes that are no control frame");
        lost(link);
        return;
      }
      at += sizeof(frame) + frame.size;
    }
    link->incoming.erase(0, at);
  }
}

bool Control::handle(Link* link, uint32_t type, const char* body, size_t size) {
  Comm& comm = *link->comm;
  if ((type == kPing || type == kPong) && size == sizeof(Beat)) {
    Beat beat;
    std::memcpy(&beat, body, sizeof(beat));
    if (!names_collective(beat.collective)) return false;
    hear_beat(link, type == kPing, beat);
    return true;
  }
  if (type == kAbort && size == sizeof(mccl_error)) {
    mccl_error error;
    std::memcpy(&error, body, sizeof(error));
    if (!makes_sense(error, comm.config.size)) return false;
    error.phase[sizeof(error.phase) - 1] = 0;
    error.message[sizeof(error.message) - 1] = 0;
    link->abort_sent = true;  // it knows
    comm.fail(error);
    return true;
  }
  if (type != kGoodbye || size != 0) return false;
  hear_goodbye(link);
  return true;
}

void Control::hear_beat(Link* link, bool asks, const Beat& beat) {
  Comm& comm = *link->comm;
  PeerInfo& info = *comm.peers[static_cast<size_t>(link->peer)];
  info.issued = beat.issued;
  info.completed = beat.completed;
  info.collective = beat.collective;
  // Who asks without reading our answers gets no more of them: any byte of ours tells it enough.
  if (asks && !link->closing && link->outgoing.size() < kMostOutgoing) {
    Beat mine = beat_of(&comm);
    say(link, kPong, &mine, sizeof(mine));
    flush(link);
  }
  // Same number, another call: nobody needs to wait for a time-out to know.
  WireHeader front = comm.copy_front();
  if (front.magic != 0 && beat.front.magic != 0 && front.sequence == beat.front.sequence &&
      std::memcmp(&front, &beat.front, sizeof(front)) != 0) {
    comm.fail_mismatch(link->peer, beat.front, front, nullptr);
  }
}

void Control::hear_goodbye(Link* link) {
  Comm& comm = *link->comm;
  PeerInfo& info = *comm.peers[static_cast<size_t>(link->peer)];
  info.left_at = now_us();
  info.flags.fetch_or(kPeerLeft);
  link->heard_goodbye = true;
  if (link->closing && link->outgoing.empty()) end(link);  // both have said all they will
  if (comm.in_flight > 0) Engine::get()->kick();  // somebody may wait for it in vain
}

// Its descriptor is closed by run(), which may hold an event for it.
void Control::end(Link* link) {
  link->ended = true;
  poller_->remove(link->fd);
  link->comm->peers[static_cast<size_t>(link->peer)]->controls.fetch_sub(1);
}

// The other side is gone. Without a goodbye that is a death, and everybody learns of it.
void Control::lost(Link* link) {
  if (link->ended) return;
  end(link);
  Comm& comm = *link->comm;
  PeerInfo& info = *comm.peers[static_cast<size_t>(link->peer)];
  if (info.controls > 0 || link->closing) return;
  if (info.flags & kPeerLeft) return;
  info.flags.fetch_or(kPeerDead);
  comm.fail(MCCL_FAIL_PEER_DIED, link->peer, nullptr, comm.in_flight > 0 ? "running" : "idle",
            "its connection closed without a goodbye: the process died or was killed");
}

void Control::tick(int64_t now) {
  // After a sleep of our own (suspended, stopped) everybody seems silent: start over.
  bool slept = last_tick_ != 0 && now - last_tick_ > 3 * tick_us_;
  last_tick_ = now;
  for (auto& link : links_) {
    // A peer that said goodbye answers no more; that is no silence.
    if (link->ended || link->closing || link->heard_goodbye) continue;
    Comm& comm = *link->comm;
    PeerInfo& info = *comm.peers[static_cast<size_t>(link->peer)];
    if (slept) info.last_heard = now;
    if (slept || comm.in_flight == 0 || comm.broken) {
      link->asked_at = 0;
      if (slept || comm.in_flight == 0) continue;
    }
    if (comm.broken) continue;
    if (link->asked_at == 0) link->asked_at = now;
    beat(link.get());
    flush(link.get());
    int64_t silent = now - std::max(info.last_heard.load(), link->asked_at);
    if (silent > comm.config.peer_timeout_us) {
      comm.fail(MCCL_FAIL_PEER_SILENT, link->peer, nullptr, "running",
                "no sign of life for " + std::to_string(silent / 1000) +
                    " ms (limit " + std::to_string(comm.config.peer_timeout_us / 1000) +
                    " ms): the process is stopped, the machine asleep, or the network cut");
    }
  }
}

// Tells peers of failures, and lets go of links that have ended.
void Control::settle(int64_t now) {
  for (auto& link : links_) {
    Comm& comm = *link->comm;
    if (comm.broken && !link->abort_sent && !link->closing && !link->ended) {
      std::lock_guard<std::mutex> error_lock(comm.error_mutex);
      say(link.get(), kAbort, &comm.first_error, sizeof(mccl_error));
      link->abort_sent = true;
      flush(link.get());
    }
    if (link->closing && !link->ended && now - link->closing_at > kLingerUs) end(link.get());
  }
  std::erase_if(links_, [](const std::unique_ptr<Link>& link) {
    if (!link->ended) return false;
    close(link->fd);
    return true;
  });
}

void Control::run() {
  PollEvent events[64];
  for (;;) {
    int64_t timeout = tick_us_;
    int n = poller_->wait(events, 64, timeout);
    std::lock_guard<std::mutex> lock(mutex_);
    for (int i = 0; i < n; ++i) {
      auto* link = static_cast<Link*>(events[i].tag);
      if (link == nullptr || link->ended) continue;
      if (events[i].readable) read_link(link);
      if (events[i].writable) flush(link);
    }
    int64_t now = now_us();
    if (last_tick_ == 0 || now - last_tick_ >= tick_us_) tick(now);
    settle(now);
  }
}

}  // namespace mccl
