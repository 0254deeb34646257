#include "scratch.h"

#include <utility>

namespace mccl {

ScratchBlock ScratchPool::take(size_t size) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t best = spare_.size();
    for (size_t i = 0; i < spare_.size(); ++i) {
      // A block more than twice as large is left for whoever needs it.
      if (spare_[i].size < size || spare_[i].size > 2 * size + 4096) continue;
      if (best == spare_.size() || spare_[i].size < spare_[best].size) best = i;
    }
    if (best < spare_.size()) {
      ScratchBlock block = std::move(spare_[best]);
      spare_[best] = std::move(spare_.back());
      spare_.pop_back();
      spare_bytes_ -= block.size;
      return block;
    }
  }
  return {std::unique_ptr<char[]>(new char[size]), size};
}

void ScratchPool::give(ScratchBlock block) {
  std::lock_guard<std::mutex> lock(mutex_);
  spare_bytes_ += block.size;
  spare_.push_back(std::move(block));
  while (spare_bytes_ > kKeepBytes) {  // the oldest goes first
    spare_bytes_ -= spare_.front().size;
    spare_.erase(spare_.begin());
  }
}

ScratchPool& scratch_pool() {
  static ScratchPool* pool = new ScratchPool;  // outlives the engine's detached threads
  return *pool;
}

}  // namespace mccl
