// gpu.cc: the worker that runs command buffers, late and in pieces.
#include <chrono>

#include "objects.h"

namespace standin {
namespace {

constexpr auto kHang = std::chrono::seconds(30);

uint64_t next_random(uint64_t& state) {  // xorshift64*
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545F4914F6CDD1DULL;
}

}  // namespace

Gpu& Gpu::instance() {
  static Gpu* gpu = new Gpu;  // never destroyed: its thread outlives main
  return *gpu;
}

Gpu::Gpu() { std::thread([this] { work(); }).detach(); }

void Gpu::submit(std::vector<Command> commands) {
  std::lock_guard<std::mutex> lock(mutex);
  counts.commits += 1;
  committed_.push_back(std::move(commands));
  changed_.notify_all();
}

void Gpu::drain() {
  std::unique_lock<std::mutex> lock(mutex);
  if (!changed_.wait_for(lock, 4 * kHang, [this] { return committed_.empty() && !busy_; })) {
    die("synchronize: the GPU never finished");
  }
}

void Gpu::reseed(uint64_t seed, uint32_t max_delay_us) {
  drain();
  std::lock_guard<std::mutex> lock(mutex);
  random_ = (seed + 1) * 0x9E3779B97F4A7C15ULL;
  max_delay_us_ = max_delay_us;
  const auto live = counts;
  counts = {};
  counts.live_events = live.live_events;
  counts.live_buffers = live.live_buffers;
  counts.live_commands = live.live_commands;
}

uint64_t Gpu::read(Event* event) {
  std::lock_guard<std::mutex> lock(mutex);
  return event->value;
}

void Gpu::raise(Event* event, uint64_t value, const char* who) {
  std::lock_guard<std::mutex> lock(mutex);
  if (value < event->value) die(std::string(who) + " lowered a shared event");
  event->value = value;
  changed_.notify_all();
}

void Gpu::pause() {
  const uint32_t limit = max_delay_us_;
  if (limit == 0) return;
  const uint64_t draw = next_random(random_);
  const uint64_t kind = draw % 16;
  if (kind < 10) return;
  if (kind < 14) {
    std::this_thread::yield();
    return;
  }
  std::this_thread::sleep_for(std::chrono::microseconds((draw >> 8) % (limit + 1)));
}

void Gpu::work() {
  while (true) {
    std::vector<Command> commands;
    {
      std::unique_lock<std::mutex> lock(mutex);
      changed_.wait(lock, [this] { return !committed_.empty(); });
      commands = std::move(committed_.front());
      committed_.pop_front();
      busy_ = true;
    }
    for (Command& command : commands) run(command);
    for (Command& command : commands) {
      for (Object* object : command.uses) release(object);
    }
    std::lock_guard<std::mutex> lock(mutex);
    busy_ = false;
    changed_.notify_all();
  }
}

void Gpu::run(Command& command) {
  pause();
  if (command.wait_for != nullptr) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto reached = [&] { return command.wait_for->value >= command.value; };
    if (!reached()) counts.waits_that_blocked += 1;
    if (!changed_.wait_for(lock, kHang, reached)) {
      die("the GPU hangs: it waited 30 s for an event to reach " + std::to_string(command.value) +
          ", which stands at " + std::to_string(command.wait_for->value));
    }
    return;
  }
  command.run();
}

void count_live(Kind kind, int64_t change) {
  Gpu& gpu = Gpu::instance();
  std::lock_guard<std::mutex> lock(gpu.mutex);
  if (kind == Kind::kEvent) gpu.counts.live_events += change;
  if (kind == Kind::kBuffer) gpu.counts.live_buffers += change;
  if (kind == Kind::kCommandBuffer) gpu.counts.live_commands += change;
}

}  // namespace standin
