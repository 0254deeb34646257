// What the fuzz targets share: the input, scripted sockets, and the engine without its threads.
//
// Theory of operation. A descriptor from open_wire() is no socket: recv and its like reach
// harness.cc (the linker's --wrap), which hands out the wire's bytes in the pieces its pattern
// says, "not now" between them, and an end of its choice. Engine::get() starts no threads; the
// target calls what they would call. So one run is a function of its input, and takes no system
// call.
#ifndef MCCL_FUZZ_HARNESS_H
#define MCCL_FUZZ_HARNESS_H

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "comm.h"
#include "engine.h"

namespace fuzz {

// Reads numbers off the front of the fuzzer's bytes; zeros when they have run out.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  template <typename T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    size_t n = left_ < sizeof(T) ? left_ : sizeof(T);
    std::memcpy(&value, data_, n);
    data_ += n;
    left_ -= n;
    return value;
  }
  std::string bytes(size_t most) {
    size_t n = left_ < most ? left_ : most;
    std::string text(reinterpret_cast<const char*>(data_), n);
    data_ += n;
    left_ -= n;
    return text;
  }
  std::string rest() { return bytes(left_); }
  size_t left() const { return left_; }

 private:
  const uint8_t* data_;
  size_t left_;
};

enum class WireEnd : uint8_t { kOpen = 0, kClosed = 1, kReset = 2 };

struct Wire {
  std::string bytes;
  size_t at = 0;
  uint32_t pattern = ~0u;  // four bits a call: 0 not now, 15 all there is, else 2^n bytes
  WireEnd end = WireEnd::kOpen;
  bool incoming = false;   // one-way: nothing may be sent back
  bool takes = true;       // what is sent; otherwise the sender is held back
  bool closed = false;
  size_t sent = 0;
  bool drained() const { return at == bytes.size(); }
};

// A descriptor for `wire`, which must outlive it.
int32_t open_wire(Wire* wire);
// Forgets all wires; aborts when one was not closed (a descriptor leak).
void forget_wires();

// Tells of nothing; targets make sockets readable themselves (Stream::look_again).
class NoPoller final : public mccl::Poller {
 public:
  bool add(int, void*) override { return true; }
  void remove(int) override {}
  int wait(mccl::PollEvent*, int, int64_t) override { return 0; }
  void wake() override {}
  bool ok() const override { return true; }
};

// The process's engine, without threads and with pollers that tell of nothing.
mccl::Engine* engine();

mccl_comm_config config(int32_t rank, int32_t size);

// Drives until every wire is read or nothing moves any more.
void drive(mccl::Comm* comm);
// Ends the communicator as mccl_comm_destroy would and checks that nothing of it is left.
void finish(mccl_comm* comm, std::vector<mccl_op*>* ops);

// Aborts with a message: an invariant of the engine does not hold.
void require(bool holds, const char* what);

}  // namespace fuzz

#endif  // MCCL_FUZZ_HARNESS_H
