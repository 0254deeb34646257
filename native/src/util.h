// Clocks, the thread's last error text, and small helpers shared by the engine's rooms.
#ifndef MCCL_SRC_UTIL_H
#define MCCL_SRC_UTIL_H

#include <time.h>

#include <cstdint>
#include <functional>
#include <string>

namespace mccl {

inline int64_t clock_us(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return int64_t{now.tv_sec} * 1000000 + now.tv_nsec / 1000;
}
// For limits and durations.
inline int64_t now_us() { return clock_us(CLOCK_MONOTONIC); }
// For records that are compared between hosts.
inline int64_t wall_us() { return clock_us(CLOCK_REALTIME); }

// What mccl_last_error returns to this thread; returns `status` for `return invalid(...)`.
void set_last_error(std::string text);
const char* last_error();

// A detached thread that gets no signals: Ctrl-C is the main thread's.
void start_thread(std::function<void()> body);

const char* collective_name(uint32_t collective);
const char* dtype_name(uint32_t dtype);
const char* redop_name(uint32_t redop);

}  // namespace mccl

#endif  // MCCL_SRC_UTIL_H
