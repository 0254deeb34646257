// Control links: signs of life, bad news and goodbyes, beside the data.
//
// One thread a process owns all of them and sleeps most of the time. While a communicator
// has operations in flight it sends heartbeats on its links, and every peer's control
// thread answers, also when that peer is computing and holds the GIL. So silence means
// stopped, unplugged or dead, never busy.
#ifndef MCCL_SRC_CONTROL_H
#define MCCL_SRC_CONTROL_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fingerprint.h"
#include "mccl.h"
#include "poller.h"

namespace mccl {

struct Comm;

// What a rank tells with every heartbeat.
struct Beat {
  uint64_t issued;
  uint64_t completed;
  uint32_t collective;
  uint32_t reserved;
  WireHeader front;
};

class Control {
 public:
  Control();
  bool ok() const { return poller_->ok(); }
  // Owns fd from here.
  void add(std::shared_ptr<Comm> comm, int32_t peer, int fd);
  // The communicator broke: tell everybody once.
  void spread(Comm* comm);
  // Orderly end: say goodbye; the links close once the other side has heard.
  void goodbye(Comm* comm);
  void run();

 private:
  struct Link {
    std::shared_ptr<Comm> comm;
    int32_t peer = -1;
    int fd = -1;
    std::string incoming;
    std::string outgoing;
    bool abort_sent = false;
    bool closing = false;   // goodbye sent
    bool heard_goodbye = false;
    int64_t closing_at = 0;
    int64_t asked_at = 0;   // first unanswered heartbeat
    bool ended = false;
  };
  void read_link(Link* link);
  // False: the frame is none that a rank sends.
  bool handle(Link* link, uint32_t type, const char* body, size_t size);
  void hear_beat(Link* link, bool asks, const Beat& beat);
  void hear_goodbye(Link* link);
  void say(Link* link, uint32_t type, const void* body, size_t size);
  void beat(Link* link);
  void flush(Link* link);
  void lost(Link* link);
  void end(Link* link);
  void tick(int64_t now);
  void settle(int64_t now);

  std::unique_ptr<Poller> poller_;
  std::mutex mutex_;  // links_
  std::vector<std::unique_ptr<Link>> links_;
  int64_t last_tick_ = 0;
  std::atomic<int64_t> tick_us_{1000000};
};

}  // namespace mccl

#endif  // MCCL_SRC_CONTROL_H
