// objects.h: the stand-in's Objective-C objects and the GPU that runs their commands.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "standin.h"

namespace standin {

[[noreturn]] void die(const std::string& why);

enum class Kind { kDevice, kName, kEvent, kBuffer, kCommandBuffer, kEncoder };

// Dead objects keep their memory until the next reset, so that a message to one is caught.
struct Object {
  explicit Object(Kind k) : kind(k) {}
  virtual ~Object() = default;
  const Kind kind;
  std::atomic<int> references{1};
};

void retain(Object* object);
void release(Object* object);
void autorelease(Object* object);  // dies without a pool: the object would leak
void* pool_push();
void pool_pop(void* pool);

struct Event : Object {
  Event() : Object(Kind::kEvent) {}
  uint64_t value = 0;  // guarded by Gpu::mutex
};

struct Buffer : Object {
  Buffer(uint64_t n, bool hidden) : Object(Kind::kBuffer), bytes(n), is_private(hidden) {}
  std::vector<uint8_t> bytes;
  const bool is_private;
};

struct Command {
  std::function<void()> run;
  Event* wait_for = nullptr;
  uint64_t value = 0;
  std::vector<Object*> uses;  // retained, as MTLCommandBuffer does
};

struct CommandBuffer : Object {
  CommandBuffer() : Object(Kind::kCommandBuffer) {}
  std::vector<Command> commands;
  bool committed = false;
  bool coalescing = false;   // PyTorch keeps one compute encoder open across kernels
  Object* encoder = nullptr; // an open blit encoder
};

struct Encoder : Object {
  explicit Encoder(CommandBuffer* b) : Object(Kind::kEncoder), buffer(b) {}
  CommandBuffer* buffer;
  bool ended = false;
};

// The command queue and its one worker.
class Gpu {
 public:
  static Gpu& instance();

  void submit(std::vector<Command> commands);
  void drain();
  void reseed(uint64_t seed, uint32_t max_delay_us);
  uint64_t read(Event* event);
  void raise(Event* event, uint64_t value, const char* who);
  // A pause inside a command, so that half-written results can be seen.
  void pause();

  standin_counts counts{};  // guarded by mutex
  std::mutex mutex;

 private:
  Gpu();
  void work();
  void run(Command& command);

  std::condition_variable changed_;
  std::deque<std::vector<Command>> committed_;
  bool busy_ = false;
  uint64_t random_ = 1;  // worker's
  std::atomic<uint32_t> max_delay_us_{0};
};

// PyTorch's stream: a serial dispatch queue and the open command buffer.
class Stream {
 public:
  static Stream& instance();
  void on_queue(void* context, void (*work)(void*));
  CommandBuffer* command_buffer();  // needs the queue
  void commit();                    // needs the queue
  void kernel(Command command);     // takes the queue itself, as PyTorch's operators do
  void own(bool own);
  void check_access(const char* what);  // queue held, by the owner
  void must_be_encodable(CommandBuffer* buffer, const char* what);

 private:
  void end_coalescing();
  std::mutex queue_;
  std::atomic<uint64_t> holder_{0};
  std::atomic<uint64_t> owner_{0};
  CommandBuffer* open_ = nullptr;
};

void count_live(Kind kind, int64_t change);
void bury(Object* object);
void empty_graveyard();
uint64_t this_thread();

}  // namespace standin
