// The flight recorder: the last operations of a communicator, always on.
#ifndef MCCL_SRC_RECORDER_H
#define MCCL_SRC_RECORDER_H

#include <cstdint>
#include <mutex>
#include <vector>

#include "mccl.h"

namespace mccl {

enum RecordState : uint32_t { kScheduled = 0, kStarted = 1, kCompleted = 2, kFailed = 3 };

class Recorder {
 public:
  explicit Recorder(uint32_t capacity) : ring_(capacity) {}
  // Returns the entry's number, for update().
  uint64_t add(const mccl_record& record);
  // Nothing happens when the entry was overwritten meanwhile.
  void update(uint64_t number, const mccl_record& record);
  uint32_t copy(mccl_record* out, uint32_t capacity);

 private:
  std::mutex mutex_;
  std::vector<mccl_record> ring_;
  uint64_t next_ = 0;
};

}  // namespace mccl

#endif  // MCCL_SRC_RECORDER_H
