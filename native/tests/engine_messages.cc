// Point-to-point messages: matching, parking, holding back, sizes, and buffers a GPU still uses.

#include "engine_ranks.h"

using namespace ranks;

namespace {

std::vector<uint8_t> pattern(uint64_t bytes, uint64_t salt) {
  std::vector<uint8_t> out(bytes);
  for (uint64_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>(i * 3 + salt * 17);
  return out;
}

mccl_stats stats_of(mccl_comm* comm) {
  mccl_stats stats{};
  mccl_comm_get_stats(comm, &stats);
  return stats;
}

void both_orders_and_all_sizes() {
  World comms(2);
  for (uint64_t bytes : {0, 1, 1000, 300000, 3000000}) {
    for (bool receive_first : {true, false}) {
      std::vector<uint8_t> out = pattern(bytes, bytes);
      std::vector<uint8_t> in(bytes);
      mccl_op* received = nullptr;
      if (receive_first) received = message(comms[1], false, 0, in.data(), bytes, 4);
      mccl_op* sent = message(comms[0], true, 1, out.data(), bytes, 4);
      if (!receive_first) received = message(comms[1], false, 0, in.data(), bytes, 4);
      EXPECT(finish(sent) == MCCL_OK);
      mccl_op_info info{};
      EXPECT(mccl_op_wait(received, -1) == MCCL_OK);
      mccl_op_get_info(received, &info);
      EXPECT(info.source == 0);
      mccl_op_release(received);
      EXPECT(in == out);
    }
  }
}

// Received in another order than sent: what comes too early is parked, and given up again.
void parked_by_tag() {
  World comms(2);
  std::vector<std::vector<uint8_t>> out;
  std::vector<std::vector<uint8_t>> in;
  std::vector<mccl_op*> sends;
  for (uint64_t tag = 0; tag < 10; ++tag) {
    out.push_back(pattern(tag * 1000, tag));
    in.emplace_back(tag * 1000);
  }
  for (uint64_t tag = 0; tag < 10; ++tag) {
    sends.push_back(message(comms[0], true, 1, out[tag].data(), out[tag].size(), tag));
  }
  for (uint64_t tag = 10; tag-- > 0;) {
    EXPECT(finish(message(comms[1], false, 0, in[tag].data(), in[tag].size(), tag)) == MCCL_OK);
    EXPECT(in[tag] == out[tag]);
  }
  for (mccl_op* op : sends) EXPECT(finish(op) == MCCL_OK);
  mccl_stats stats = stats_of(comms[1]);
  EXPECT(stats.parked_peak == 36000);
  EXPECT(stats.parked_bytes == 0);
}

// Messages of one source and tag arrive in the order they were sent.
void same_tag_in_order() {
  World comms(2);
  constexpr uint64_t kMessages = 50;
  each_rank(2, [&](int rank) {
    std::vector<uint64_t> data(kMessages);
    std::vector<mccl_op*> ops;
    for (uint64_t k = 0; k < kMessages; ++k) {
      if (rank == 0) data[k] = k;
      ops.push_back(message(comms[rank], rank == 0, 1 - rank, &data[k], sizeof(uint64_t), 3));
    }
    for (mccl_op* op : ops) EXPECT(finish(op) == MCCL_OK);
    for (uint64_t k = 0; k < kMessages; ++k) EXPECT(data[k] == k);
  });
}

void any_source() {
  World comms(4);
  std::vector<uint64_t> in(30);
  std::vector<mccl_op*> receives;
  for (size_t k = 0; k < 15; ++k) {
    receives.push_back(message(comms[0], false, -1, &in[k], sizeof(uint64_t), 8));
  }
  each_rank(4, [&](int rank) {
    if (rank == 0) return;
    std::vector<uint64_t> out(10, static_cast<uint64_t>(rank));
    std::vector<mccl_op*> ops;
    for (uint64_t& value : out) ops.push_back(message(comms[rank], true, 0, &value, 8, 8));
    for (mccl_op* op : ops) EXPECT(finish(op) == MCCL_OK);
  });
  for (size_t k = 15; k < 30; ++k) {
    receives.push_back(message(comms[0], false, -1, &in[k], sizeof(uint64_t), 8));
  }
  int per_source[4] = {};
  for (size_t k = 0; k < 30; ++k) {
    EXPECT(mccl_op_wait(receives[k], -1) == MCCL_OK);
    mccl_op_info info{};
    mccl_op_get_info(receives[k], &info);
    EXPECT(info.source > 0 && in[k] == static_cast<uint64_t>(info.source));
    if (info.source > 0) per_source[info.source] += 1;
    mccl_op_release(receives[k]);
  }
  EXPECT(per_source[1] == 10 && per_source[2] == 10 && per_source[3] == 10);
}

// Beyond park_bytes the sender waits: nothing is buffered, nothing is lost.
void held_back_beyond_the_limit() {
  Options options;
  options.park_bytes = 1000;
  World comms(2, options);
  std::vector<uint8_t> big = pattern(8 << 20, 1);
  std::vector<uint8_t> in(big.size());
  uint8_t small = 77;
  uint8_t small_in = 0;
  mccl_op* first = message(comms[0], true, 1, big.data(), big.size(), 1);
  mccl_op* second = message(comms[0], true, 1, &small, 1, 2);
  mccl_op* wanted = message(comms[1], false, 0, &small_in, 1, 2);
  // Only the header of the big one may be taken: 32 bytes.
  until([&] { return stats_of(comms[1]).bytes_received == 32; });
  EXPECT(mccl_op_test(first) == MCCL_PENDING);
  EXPECT(stats_of(comms[1]).parked_peak == 0);
  EXPECT(finish(message(comms[1], false, 0, in.data(), in.size(), 1)) == MCCL_OK);
  EXPECT(finish(first) == MCCL_OK && finish(second) == MCCL_OK && finish(wanted) == MCCL_OK);
  EXPECT(in == big && small_in == 77);
  EXPECT(stats_of(comms[1]).parked_peak == 0);
}

// Empty messages count too, and a size near 2^64 is no small one: the sender is held back.
void no_parking_without_a_limit() {
  struct Header {
    uint32_t magic, dtype;
    uint64_t epoch, tag, bytes;
  };
  for (bool empty : {true, false}) {
    Options options;
    options.park_bytes = 4096;
    Pair raw{-1, -1};
    options.connect = [&raw](int from, int, uint32_t channel) {
      Pair pair = socket_pair();
      if (from != 0 || channel != MCCL_P2P_TX) return pair;
      raw = pair;
      return Pair{socket_pair().from, pair.to};
    };
    World comms(2, options);
    uint8_t never = 0;
    mccl_op* waiting = message(comms[1], false, 0, &never, 1, 99);
    std::string wire;
    auto say = [&wire](uint64_t tag, uint64_t bytes, const std::string& body) {
      Header header{0x4d435031, 0, 7, tag, bytes};
      wire.append(reinterpret_cast<const char*>(&header), sizeof(header)).append(body);
    };
    if (empty) {
      for (int i = 0; i < 1000; ++i) say(1, 0, "");
    } else {
      say(1, 10, "0123456789");
      say(2, ~uint64_t{0}, "");
    }
    say(99, 1, "x");
    EXPECT(write(raw.from, wire.data(), wire.size()) == static_cast<ssize_t>(wire.size()));
    EXPECT(mccl_op_wait(waiting, 200000) == MCCL_WAIT_TIMEOUT);
    mccl_stats stats = stats_of(comms[1]);
    EXPECT_MSG(stats.bytes_received < 200 * sizeof(Header), "%llu bytes were read",
               static_cast<unsigned long long>(stats.bytes_received));
    EXPECT(stats.parked_bytes <= options.park_bytes);
    mccl_comm_abort(comms[1], "enough");
    EXPECT(finish(waiting) == MCCL_BROKEN);
    close(raw.from);
  }
}

void sizes_differ() {
  World comms(2);
  uint8_t data[20] = {};
  mccl_op* received = message(comms[1], false, 0, data, 20, 6);
  mccl_op* sent = message(comms[0], true, 1, data, 10, 6);
  EXPECT(finish(received) == MCCL_BROKEN);
  int status = finish(sent);  // its bytes may have been taken before the news
  EXPECT(status == MCCL_OK || status == MCCL_BROKEN);
  until([&] { return broken(comms[0]); });
  for (int rank : {0, 1}) {
    mccl_error error = error_of(comms[rank]);
    EXPECT(error.failure == MCCL_FAIL_MISMATCH);
    EXPECT(error.culprit == 0 && error.reporter == 1);
    EXPECT(mentions(error, "10 bytes") && mentions(error, "20 bytes"));
  }
}

// A receive whose memory the GPU still uses leaves its message parked and holds nobody up.
void parked_until_the_gpu_is_ready() {
  World comms(2);
  World others(2);
  std::vector<uint8_t> out = pattern(5000, 5);
  std::vector<uint8_t> in(5000, 1);
  uint8_t last = 0;
  mccl_op* later = message(comms[1], false, 0, &last, 1, 9);  // so that tag 5 is parked
  mccl_op* sent = message(comms[0], true, 1, out.data(), out.size(), 5);
  EXPECT(finish(sent) == MCCL_OK);
  until([&] { return stats_of(comms[1]).parked_bytes == 5000; });
  alignas(8) uint64_t word = 0;
  mccl_ticket ticket{};
  mccl_word_ticket(&word, &ticket);
  mccl_p2p_desc desc{};
  desc.bytes = in.size();
  desc.buffer = in.data();
  desc.tag = 5;
  desc.timeout_us = kLimitUs;
  desc.produced = &ticket;
  desc.produced_value = 1;
  mccl_op* received = nullptr;
  EXPECT(mccl_p2p(comms[1], &desc, &received) == MCCL_OK);
  Plans plans(ring, 2, 100);
  each_rank(2, [&](int rank) {  // the engine goes on meanwhile
    std::vector<float> data(100, 1);
    void* buffers[] = {data.data()};
    EXPECT(run_sync(others[rank], all_reduce_desc(plans[rank], buffers, 100, MCCL_F32)) == MCCL_OK);
  });
  EXPECT(mccl_op_test(received) == MCCL_PENDING);
  EXPECT(in == std::vector<uint8_t>(5000, 1));
  std::atomic_ref<uint64_t>(word).store(1, std::memory_order_release);
  EXPECT(finish(received) == MCCL_OK);
  EXPECT(in == out);
  EXPECT(stats_of(comms[1]).parked_bytes == 0);
  uint8_t value = 3;
  EXPECT(finish(message(comms[0], true, 1, &value, 1, 9)) == MCCL_OK);
  EXPECT(finish(later) == MCCL_OK && last == 3);
}

}  // namespace

int main() {
  start_watchdog();
  both_orders_and_all_sizes();
  parked_by_tag();
  same_tag_in_order();
  any_source();
  held_back_beyond_the_limit();
  no_parking_without_a_limit();
  sizes_differ();
  parked_until_the_gpu_is_ready();
  return check::result();
}
