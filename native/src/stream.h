// A one-way byte stream to or from one peer.
//
// Plain: one socket, no framing; bytes go straight between the caller's memory and the
// kernel. Framed: several sockets (rails), or a checksum. Each frame then carries its
// offset in the stream, so that a rail takes as much as its speed allows and the receiver
// merges rails in order: it reads ahead one frame a rail, delivers the one it needs next.
#ifndef MCCL_SRC_STREAM_H
#define MCCL_SRC_STREAM_H

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "poller.h"
#include "sender.h"

namespace mccl {

// Stays in L2 between receiving and reducing, also where ranks share a core.
#ifndef MCCL_PIECE_BYTES
#define MCCL_PIECE_BYTES (128 * 1024)
#endif
inline constexpr size_t kPieceBytes = MCCL_PIECE_BYTES;

inline constexpr size_t kOffloadPieceBytes = 1024 * 1024;  // handed to the sender at once

enum class IoResult { kMoved, kBlocked, kClosed, kFailed, kCorrupt };

struct Frame {
  uint32_t magic;
  uint32_t length;
  uint64_t offset;
  uint32_t crc;  // of the payload, 0 without checksum
  uint32_t header_crc;
};
static_assert(sizeof(Frame) == 24);

struct Rail {
  int fd = -1;
  bool readable = true;
  bool writable = true;
  bool ended = false;  // the sender closed it after its last frame
  // Framed only: the frame being sent or received, header first.
  std::unique_ptr<char[]> buffer;
  size_t filled = 0;  // bytes of the frame in the buffer
  size_t moved = 0;   // sent, or handed to the caller (payload)
};

class Stream {
 public:
  ~Stream();
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Owns the descriptors from here. False: the poller refused.
  bool open(const int32_t* fds, uint32_t n, bool checksum, Poller* poller);
  // Big plain sends may go through `sender` from now on.
  void offload(Sender* sender) { sender_ = sender; }
  bool offloads() const { return sender_ != nullptr && !framed_; }
  bool is_open() const { return !rails_.empty(); }
  void shut();  // ends the connection for both sides; descriptors stay until destruction

  // At most `parts` pieces of memory, in order; *moved counts payload bytes.
  IoResult send(const iovec* parts, int n, size_t* moved);
  IoResult receive(iovec* parts, int n, size_t* moved);
  // After kBlocked: at least `bytes` more are coming. Wakes the driver for a good mouthful instead
  // of every packet; the less there is to come, the sooner.
  void expect(size_t bytes);
  // Looks again whatever the poller said.
  void look_again();
  // Framed streams hold accepted bytes back; true when nothing is held.
  bool flushed() const;
  // The system ran out of socket memory (macOS): no event will say when to try again.
  bool short_of_buffers() const { return short_of_buffers_; }
  IoResult flush();

  int error() const { return error_; }
  bool framed() const { return framed_; }

 private:
  IoResult send_plain(const iovec* parts, int n, size_t* moved);
  IoResult send_offloaded(const iovec* parts, int n, size_t* moved, bool* taken);
  IoResult receive_plain(iovec* parts, int n, size_t* moved);
  IoResult push(Rail& rail);
  IoResult pull(Rail& rail, bool* whole);
  IoResult failed(int error);

  std::vector<std::unique_ptr<Rail>> rails_;
  Poller* poller_ = nullptr;
  Sender* sender_ = nullptr;
  int mouthful_ = 1;  // SO_RCVLOWAT as set
  bool framed_ = false;
  bool checksum_ = false;
  bool short_of_buffers_ = false;
  uint64_t offset_ = 0;  // payload bytes accepted, or delivered
  int error_ = 0;
};

}  // namespace mccl

#endif  // MCCL_SRC_STREAM_H
