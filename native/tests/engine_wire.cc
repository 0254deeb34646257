// What lies between the ranks: rails, checksums, damaged bytes, dribbling links, slow receivers.

#include <list>
#include <memory>
#include <numeric>

#include "engine_ranks.h"
#include "poller.h"
#include "stream.h"

using namespace ranks;

namespace {

std::vector<int32_t> values(uint64_t count, int rank) {
  std::vector<int32_t> out(count);
  for (uint64_t i = 0; i < count; ++i) {
    out[i] = static_cast<int32_t>(i * 2654435761U + static_cast<uint64_t>(rank) * 977);
  }
  return out;
}

std::vector<int32_t> total(int world, uint64_t count) {
  std::vector<int32_t> out(count);
  for (int rank = 0; rank < world; ++rank) {
    std::vector<int32_t> part = values(count, rank);
    for (uint64_t i = 0; i < count; ++i) {
      out[i] = static_cast<int32_t>(static_cast<uint32_t>(out[i]) + static_cast<uint32_t>(part[i]));
    }
  }
  return out;
}

// An all-reduce and a message each way must come out right over whatever `options` puts between.
void exchange(int world, Options options, uint64_t count) {
  World comms(world, std::move(options));
  Plans plans(ring, world, count);
  const std::vector<int32_t> sum = total(world, count);
  std::vector<std::vector<int32_t>> own;
  for (int rank = 0; rank < world; ++rank) own.push_back(values(count, rank));
  each_rank(world, [&](int rank) {
    int next = (rank + 1) % world;
    int before = (rank + world - 1) % world;
    std::vector<int32_t> out = own[static_cast<size_t>(rank)];
    std::vector<int32_t> data = out;
    void* buffers[] = {data.data()};
    mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, count, MCCL_I32);
    EXPECT(run_sync(comms[rank], desc) == MCCL_OK);
    EXPECT_MSG(data == sum, "wrong sum on rank %d", rank);
    std::vector<int32_t> in(count);
    mccl_op* sent = message(comms[rank], true, next, out.data(), count * 4, 1);
    mccl_op* received = message(comms[rank], false, before, in.data(), count * 4, 1);
    EXPECT(finish(sent) == MCCL_OK && finish(received) == MCCL_OK);
    EXPECT(in == own[static_cast<size_t>(before)]);
  });
}

void rails_and_checksums() {
  for (uint32_t rails : {1, 2, 3}) {
    for (bool checksum : {false, true}) {
      Options options;
      options.rails = rails;
      options.checksum = checksum;
      for (uint64_t count : {3, 1000, 200003}) exchange(3, options, count);
    }
  }
}

void sender_thread() {
  Options options;
  options.send_thread = true;
  exchange(2, options, 600011);
  exchange(3, options, 1000);
}

// A wire of its own thread: forwards bytes one way, in bites, perhaps damaging one.
class Wire {
 public:
  // bite: most bytes at once; damage: which byte loses its lowest bit, -1 none.
  Wire(uint64_t seed, uint64_t bite, int64_t damage) {
    Pair first = socket_pair();
    Pair second = socket_pair();
    ends_ = {first.from, second.to};
    thread_ = std::thread([first, second, seed, bite, damage] {
      Random random{seed};
      std::vector<char> bytes(bite);
      int64_t at = 0;
      for (;;) {
        ssize_t got = read(first.to, bytes.data(), 1 + random.below(bite));
        if (got <= 0) break;
        if (damage >= at && damage < at + got) bytes[static_cast<size_t>(damage - at)] ^= 1;
        at += got;
        ssize_t put = 0;
        for (ssize_t n = 0; put < got && n >= 0; put += n) {
          n = send(second.from, bytes.data() + put, static_cast<size_t>(got - put), 0);
          if (n < 0) break;
        }
        if (put < got) break;
      }
      close(first.to);
      close(second.from);
    });
  }
  ~Wire() { thread_.join(); }
  Pair ends() const { return ends_; }

 private:
  Pair ends_{};
  std::thread thread_;
};

// Reads and writes cut anywhere, in headers, elements and frames.
void dribbling_links() {
  uint64_t seed = 1;
  for (uint32_t rails : {1, 2}) {
    for (bool checksum : {false, true}) {
      for (uint64_t bite : {3, 700}) {
        std::list<Wire> wires;
        Options options;
        options.rails = rails;
        options.checksum = checksum;
        options.connect = [&](int, int, uint32_t) {
          return wires.emplace_back(seed++, bite, -1).ends();
        };
        exchange(2, options, bite == 3 ? 201 : 20011);
      }
    }
  }
}

// One flipped bit, early (in a frame header) or late (in a payload): both ranks name the link.
void damaged_bytes() {
  for (int64_t damage : {20, 30, 100000}) {
    std::list<Wire> wires;
    Options options;
    options.checksum = true;
    options.connect = [&](int from, int, uint32_t channel) {
      if (from != 0 || channel != MCCL_COLLECTIVE_TX) return socket_pair();
      return wires.emplace_back(9, 4096, damage).ends();
    };
    World comms(2, options);
    constexpr uint64_t kCount = 100003;
    Plans plans(ring, 2, kCount);
    each_rank(2, [&](int rank) {
      std::vector<int32_t> data = values(kCount, rank);
      void* buffers[] = {data.data()};
      mccl_op_desc desc = all_reduce_desc(plans[rank], buffers, kCount, MCCL_I32);
      EXPECT(run_sync(comms[rank], desc) == MCCL_BROKEN);
      mccl_error error = error_of(comms[rank]);
      EXPECT_MSG(error.failure == MCCL_FAIL_CORRUPT && error.culprit == 0 && error.reporter == 1,
                 "damage at %lld: rank %d says %u %d %d %s", static_cast<long long>(damage), rank,
                 error.failure, error.culprit, error.reporter, error.message);
    });
  }
}

// Nobody buffers for a rank that is late: the sender gets as far as the sockets take it.
void late_receiver() {
  constexpr uint64_t kCount = 1 << 20;
  for (bool checksum : {false, true}) {
    Options options;
    options.checksum = checksum;
    World comms(2, options);
    Plans plans(ring, 2, kCount);
    std::vector<int32_t> data[2] = {values(kCount, 0), values(kCount, 1)};
    void* buffers[2][1] = {{data[0].data()}, {data[1].data()}};
    mccl_op* early = start(comms[0], all_reduce_desc(plans[0], buffers[0], kCount, MCCL_I32));
    mccl_stats stats{};
    uint64_t before = 0;
    for (int same = 0; same < 50;) {  // until it stands still
      mccl_wait_completion(UINT64_MAX, 1000);
      mccl_comm_get_stats(comms[0], &stats);
      same = stats.bytes_sent == before && before > 0 ? same + 1 : 0;
      before = stats.bytes_sent;
    }
    EXPECT_MSG(before < (1 << 20), "%llu bytes accepted", static_cast<unsigned long long>(before));
    mccl_op* late = start(comms[1], all_reduce_desc(plans[1], buffers[1], kCount, MCCL_I32));
    EXPECT(finish(early) == MCCL_OK && finish(late) == MCCL_OK);
    EXPECT(data[0] == data[1]);
    EXPECT(data[0] == total(2, kCount));
  }
}

// Rails end one by one; what is still on its way on another must not be lost.
void rails_end_in_any_order() {
  std::unique_ptr<mccl::Poller> poller = mccl::make_poller();
  Pair out[2] = {socket_pair(), socket_pair()};
  Pair in[2] = {socket_pair(), socket_pair()};
  std::vector<char> payload(mccl::kPieceBytes + 1000);  // a frame on each rail
  std::iota(payload.begin(), payload.end(), 0);
  mccl::Stream tx;
  mccl::Stream rx;
  int32_t tx_fds[] = {out[0].from, out[1].from};
  int32_t rx_fds[] = {in[0].to, in[1].to};
  EXPECT(tx.open(tx_fds, 2, true, poller.get()));
  EXPECT(rx.open(rx_fds, 2, true, poller.get()));
  auto settle = [&] {  // as the engine does: what the poller says becomes readiness
    mccl::PollEvent events[16];
    int n = poller->wait(events, 16, 0);
    for (int i = 0; i < n; ++i) {
      auto* rail = static_cast<mccl::Rail*>(events[i].tag);
      rail->readable = rail->readable || events[i].readable;
      rail->writable = rail->writable || events[i].writable;
    }
  };
  iovec part{payload.data(), payload.size()};
  size_t moved = 0;
  EXPECT(tx.send(&part, 1, &moved) == mccl::IoResult::kMoved && moved == payload.size());
  std::string frames[2];
  while (!tx.flushed() || frames[1].empty()) {
    for (int rail : {0, 1}) {
      char bytes[65536];
      ssize_t got;
      while ((got = recv(out[rail].to, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
        frames[rail].append(bytes, static_cast<size_t>(got));
      }
    }
    settle();
    tx.flush();
  }
  for (int rail : {0, 1}) {
    char bytes[65536];
    ssize_t got;
    while ((got = recv(out[rail].to, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
      frames[rail].append(bytes, static_cast<size_t>(got));
    }
  }
  std::vector<char> arrived(payload.size());
  size_t have = 0;
  auto take = [&] {
    settle();
    iovec into{arrived.data() + have, arrived.size() - have};
    mccl::IoResult result = rx.receive(&into, 1, &moved);
    have += moved;
    return result;
  };
  for (size_t at = 0; at < frames[0].size();) {
    ssize_t put = send(in[0].from, frames[0].data() + at, frames[0].size() - at, MSG_DONTWAIT);
    if (put > 0) at += static_cast<size_t>(put);
    mccl::IoResult result = take();
    EXPECT(result == mccl::IoResult::kMoved || result == mccl::IoResult::kBlocked);
  }
  close(in[0].from);
  while (take() == mccl::IoResult::kMoved) {
  }
  EXPECT(have == mccl::kPieceBytes);
  EXPECT(take() == mccl::IoResult::kBlocked);
  EXPECT(send(in[1].from, frames[1].data(), frames[1].size(), 0) ==
         static_cast<ssize_t>(frames[1].size()));
  close(in[1].from);
  EXPECT(take() == mccl::IoResult::kMoved);
  EXPECT(have == payload.size() && arrived == payload);
  char more = 0;
  iovec into{&more, 1};
  EXPECT(rx.receive(&into, 1, &moved) == mccl::IoResult::kClosed);
  close(out[0].to);
  close(out[1].to);
}

// Frames that can never become due are an error at once, not a wait.
void frames_that_never_fit() {
  auto frame = [](uint64_t offset, const std::string& payload) {
    mccl::Frame head{0x4d434631, static_cast<uint32_t>(payload.size()), offset,
                     mccl_crc32c(0, payload.data(), payload.size()), 0};
    head.header_crc = mccl_crc32c(0, &head, offsetof(mccl::Frame, header_crc));
    return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + payload;
  };
  for (bool twice : {true, false}) {  // delivered already; or a hole before all of them
    std::unique_ptr<mccl::Poller> poller = mccl::make_poller();
    Pair pairs[2] = {socket_pair(), socket_pair()};
    int32_t fds[2] = {pairs[0].to, pairs[1].to};
    mccl::Stream stream;
    EXPECT(stream.open(fds, 2, true, poller.get()));
    for (int rail : {0, 1}) {
      std::string bytes = frame(0, "same");
      if (!twice) bytes = frame(static_cast<uint64_t>(8 + 4 * rail), "same");
      EXPECT(write(pairs[rail].from, bytes.data(), bytes.size()) ==
             static_cast<ssize_t>(bytes.size()));
    }
    char into[64];
    iovec part{into, sizeof(into)};
    size_t moved = 0;
    mccl::IoResult result = stream.receive(&part, 1, &moved);
    while (result == mccl::IoResult::kMoved) result = stream.receive(&part, 1, &moved);
    EXPECT(result == mccl::IoResult::kCorrupt);
    close(pairs[0].from);
    close(pairs[1].from);
  }
}

}  // namespace

int main() {
  start_watchdog();
  std::signal(SIGPIPE, SIG_IGN);  // a wire whose far end is gone just ends
  rails_and_checksums();
  sender_thread();
  dribbling_links();
  damaged_bytes();
  late_receiver();
  rails_end_in_any_order();
  frames_that_never_fit();
  return check::result();
}
