#include "recorder.h"

#include <algorithm>

namespace mccl {

uint64_t Recorder::add(const mccl_record& record) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ring_.empty()) ring_[next_ % ring_.size()] = record;
  return next_++;
}

void Recorder::update(uint64_t number, const mccl_record& record) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (number < next_ && next_ - number <= ring_.size()) ring_[number % ring_.size()] = record;
}

uint32_t Recorder::copy(mccl_record* out, uint32_t capacity) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t kept = std::min<uint64_t>({next_, ring_.size(), capacity});
  for (uint64_t i = 0; i < kept; ++i) out[i] = ring_[(next_ - kept + i) % ring_.size()];
  return static_cast<uint32_t>(kept);
}

}  // namespace mccl
