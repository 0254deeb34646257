// Scratch memory for operations, kept between them: fresh pages cost more than the sums.
#ifndef MCCL_SRC_SCRATCH_H
#define MCCL_SRC_SCRATCH_H

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace mccl {

struct ScratchBlock {
  std::unique_ptr<char[]> memory;
  size_t size = 0;
};

class ScratchPool {
 public:
  ScratchBlock take(size_t size);
  void give(ScratchBlock block);

 private:
  static constexpr size_t kKeepBytes = size_t{256} << 20;
  std::mutex mutex_;
  std::vector<ScratchBlock> spare_;
  size_t spare_bytes_ = 0;
};

ScratchPool& scratch_pool();

}  // namespace mccl

#endif  // MCCL_SRC_SCRATCH_H
