#include "harness.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>

namespace {

constexpr int32_t kFirst = 1 << 20;  // above any real descriptor
std::vector<fuzz::Wire*> wires;

fuzz::Wire* find(int fd) {
  size_t index = static_cast<size_t>(fd) - kFirst;
  return fd >= kFirst && index < wires.size() ? wires[index] : nullptr;
}

ssize_t read_wire(fuzz::Wire* wire, void* into, size_t size) {
  fuzz::require(!wire->closed, "reads a closed descriptor");
  uint32_t nibble = wire->pattern & 15;
  wire->pattern = wire->pattern >> 4 | wire->pattern << 28;
  if (nibble == 0) {
    errno = EAGAIN;
    return -1;
  }
  size_t left = wire->bytes.size() - wire->at;
  if (left == 0 && size > 0) {
    if (wire->end == fuzz::WireEnd::kClosed) return 0;
    errno = wire->end == fuzz::WireEnd::kReset ? ECONNRESET : EAGAIN;
    return -1;
  }
  size_t n = std::min(size, left);
  if (nibble < 15) n = std::min(n, size_t{1} << nibble);
  std::memcpy(into, wire->bytes.data() + wire->at, n);
  wire->at += n;
  return static_cast<ssize_t>(n);
}

ssize_t write_wire(fuzz::Wire* wire, size_t size) {
  fuzz::require(!wire->closed, "writes a closed descriptor");
  fuzz::require(!wire->incoming, "writes to a link that only brings");
  if (!wire->takes) {
    errno = EAGAIN;
    return -1;
  }
  wire->sent += size;
  return static_cast<ssize_t>(size);
}

}  // namespace

namespace fuzz {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken invariant: %s\n", what);
  std::abort();
}

int32_t open_wire(Wire* wire) {
  wires.push_back(wire);
  return kFirst + static_cast<int32_t>(wires.size()) - 1;
}

void forget_wires() {
  for (const Wire* wire : wires) require(wire->closed, "a descriptor is left open");
  wires.clear();
}

mccl::Engine* engine() {
  static mccl::Engine* made = [] {
    mccl::Engine* engine = mccl::Engine::get();
    require(engine != nullptr, "no engine");
    engine->poller_.release();  // the sender keeps a pointer to it
    engine->poller_ = std::make_unique<NoPoller>();
    engine->control_.poller_ = std::make_unique<NoPoller>();
    return engine;
  }();
  return made;
}

mccl_comm_config config(int32_t rank, int32_t size) {
  mccl_comm_config config{};
  config.rank = rank;
  config.size = size;
  config.epoch = 7;
  config.peer_timeout_us = 60000000;
  config.park_bytes = 1 << 12;
  config.record_capacity = 8;
  std::strcpy(config.name, "fuzz");
  return config;
}

void drive(mccl::Comm* comm) {
  mccl::Engine* engine = fuzz::engine();
  for (int idle = 0; idle < 20;) {  // a pattern can say "not now" seven times in a row
    if (engine->inbox_filled_) engine->drain_inbox();
    bool moved = engine->pass();
    for (auto& info : comm->peers) {
      for (auto& lane : info->lanes) {
        if (lane) lane->stream.look_again();
      }
    }
    idle = moved ? 0 : idle + 1;
    bool drained = std::all_of(wires.begin(), wires.end(), [](Wire* w) { return w->drained(); });
    if (!moved && drained && idle > 2) break;
  }
}

void finish(mccl_comm* handle, std::vector<mccl_op*>* ops) {
  mccl::Engine* engine = fuzz::engine();
  std::shared_ptr<mccl::Comm> comm = handle->comm;
  for (Wire* wire : wires) wire->takes = true;
  if (engine->inbox_filled_) engine->drain_inbox();
  engine->close_comm(comm.get());
  if (engine->inbox_filled_) engine->drain_inbox();
  for (mccl_op* op : *ops) {
    require(mccl_op_test(op) != MCCL_PENDING, "an operation outlives its communicator");
    mccl_op_release(op);
  }
  ops->clear();
  delete handle;
  engine->known_.clear();
  require(engine->lanes_.empty() && engine->comms_.empty(), "the engine still lists something");
  require(comm->in_flight == 0, "operations in flight of a closed communicator");
  require(comm.use_count() == 1, "something still holds the communicator");
}

}  // namespace fuzz

extern "C" {

// Freed memory is watched for a while; 256 MiB of it would be written over and over.
const char* __asan_default_options() { return "quarantine_size_mb=4"; }

ssize_t __real_recv(int, void*, size_t, int);
ssize_t __wrap_recv(int fd, void* into, size_t size, int flags) {
  fuzz::Wire* wire = find(fd);
  return wire != nullptr ? read_wire(wire, into, size) : __real_recv(fd, into, size, flags);
}

ssize_t __wrap_readv(int fd, const iovec* parts, int n) {
  fuzz::Wire* wire = find(fd);
  fuzz::require(wire != nullptr, "readv on a strange descriptor");
  ssize_t total = 0;
  for (int i = 0; i < n; ++i) {
    ssize_t got = read_wire(wire, parts[i].iov_base, parts[i].iov_len);
    if (got < 0 || (got == 0 && parts[i].iov_len > 0)) return total > 0 ? total : got;
    total += got;
    if (static_cast<size_t>(got) < parts[i].iov_len) break;
  }
  return total;
}

ssize_t __wrap_send(int fd, const void*, size_t size, int) { return write_wire(find(fd), size); }

ssize_t __wrap_sendmsg(int fd, const msghdr* message, int) {
  size_t size = 0;
  for (size_t i = 0; i < message->msg_iovlen; ++i) size += message->msg_iov[i].iov_len;
  return write_wire(find(fd), size);
}

int __real_close(int);
int __wrap_close(int fd) {
  fuzz::Wire* wire = find(fd);
  if (wire == nullptr) return __real_close(fd);
  fuzz::require(!wire->closed, "closes a descriptor twice");
  wire->closed = true;
  return 0;
}

int __wrap_shutdown(int fd, int) {
  fuzz::require(find(fd) != nullptr && !find(fd)->closed, "shuts a strange descriptor down");
  return 0;
}

int __wrap_fcntl(int, int, ...) { return 0; }

int __wrap_setsockopt(int, int, int, const void*, socklen_t) { return 0; }

void __wrap__ZN4mccl12start_threadESt8functionIFvvEE(std::function<void()>) {}

}  // extern "C"
