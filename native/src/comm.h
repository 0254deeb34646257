// A communicator: its members' lanes, its operations in order, its first error.
#ifndef MCCL_SRC_COMM_H
#define MCCL_SRC_COMM_H

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fingerprint.h"
#include "mccl.h"
#include "op.h"
#include "recorder.h"
#include "stream.h"

namespace mccl {

class Engine;

struct MessageHeader {
  uint32_t magic;
  uint32_t dtype;
  uint64_t epoch;
  uint64_t tag;
  uint64_t bytes;
};
static_assert(sizeof(MessageHeader) == 32);
inline constexpr uint32_t kMessageMagic = 0x4d435031;  // "MCP1"

struct StepRef {
  Op* op;
  uint32_t step;
};

// A message on its way in, parked or not.
struct Message {
  int32_t peer = -1;
  MessageHeader header{};
  Op* target = nullptr;           // the receive it belongs to, once known
  std::unique_ptr<char[]> parked; // its bytes while (or since) it had no receive
  uint64_t have = 0;
  bool complete() const { return have == header.bytes; }
};

// One direction of one channel to one peer. Owned by the driver.
struct Lane {
  Comm* comm = nullptr;
  int32_t peer = -1;
  uint32_t channel = 0;
  Stream stream;
  bool listed = false;     // in the engine's list of lanes with something to do
  int64_t closed_at = 0;   // when the other side was found gone
  bool transmits() const { return channel == MCCL_COLLECTIVE_TX || channel == MCCL_P2P_TX; }

  // Collectives.
  std::deque<StepRef> queue;
  size_t header_moved = 0;           // bytes of the front step's fingerprint
  WireHeader header{};
  std::unique_ptr<char[]> scratch;   // incoming, or converted outgoing
  size_t scratch_begin = 0;          // valid bytes in scratch
  size_t scratch_end = 0;

  // Messages.
  std::deque<Op*> sends;
  MessageHeader message_header{};
  std::unique_ptr<Message> message;  // being received

  bool pending() const { return !queue.empty() || !sends.empty(); }
};

struct Counters {
  std::atomic<uint64_t> operations{0}, failed{0}, bytes_sent{0}, bytes_received{0},
      bytes_reduced{0}, parked_bytes{0}, parked_peak{0};
  std::atomic<int64_t> busy_us{0}, blocked_send_us{0}, blocked_receive_us{0}, blocked_ticket_us{0},
      reduce_us{0};
};

enum PeerFlag : int { kPeerDead = 1, kPeerLeft = 2 };

struct PeerInfo {
  std::string label;
  std::array<std::atomic<bool>, 5> linked{};  // by channel
  std::atomic<int> flags{0};
  std::atomic<int64_t> left_at{0};  // when its goodbye came
  std::atomic<int64_t> last_heard{0};
  std::atomic<uint64_t> issued{0};
  std::atomic<uint64_t> completed{0};
  std::atomic<uint32_t> collective{255};
  std::atomic<int> controls{0};
  std::array<std::unique_ptr<Lane>, 4> lanes;  // the driver's
};

struct Comm : std::enable_shared_from_this<Comm> {
  explicit Comm(const mccl_comm_config& given);

  const mccl_comm_config config;
  Counters counters;
  Recorder recorder;
  std::vector<std::unique_ptr<PeerInfo>> peers;

  // Issue order: the number is taken and the operation queued under one lock, so that
  // operations enter the wire in the order of the calls.
  std::mutex issue_mutex;
  std::atomic<uint64_t> issued{0};
  std::atomic<uint64_t> completed{0};
  std::atomic<uint32_t> current{255};   // collective in flight, for heartbeats
  std::atomic<int64_t> in_flight{0};

  // The oldest collective in flight, told to peers with every heartbeat; magic 0: none.
  std::mutex front_mutex;
  WireHeader front{};
  void note_front(const Op* op);
  WireHeader copy_front();

  // First error wins and is kept.
  std::mutex error_mutex;
  mccl_error first_error{};
  std::atomic<bool> broken{false};
  std::atomic<bool> closed{false};

  // The driver's.
  std::deque<Op*> waiting;   // not begun: beyond the window
  std::deque<Op*> running;   // in the lanes, in issue order
  std::vector<Op*> messages; // point-to-point operations not finished
  std::vector<std::unique_ptr<Message>> parked;
  bool busy_listed = false;
  int64_t busy_since = 0;
  bool failed_operations = false;

  Lane& lane(int32_t peer, uint32_t channel);
  std::string name_of(int32_t peer);
  std::string describe_peer(int32_t peer);  // what its heartbeats last said
  // Keeps the first error and starts telling everybody. False: there was one already.
  bool fail(const mccl_error& error);
  bool fail(uint32_t failure, int32_t culprit, const Op* op, const char* phase,
            const std::string& message);
  // `peer` announced `theirs` where this rank is in `mine`.
  void fail_mismatch(int32_t peer, const WireHeader& theirs, const WireHeader& mine, const Op* op);
};

}  // namespace mccl

struct mccl_comm {
  std::shared_ptr<mccl::Comm> comm;
};

#endif  // MCCL_SRC_COMM_H
