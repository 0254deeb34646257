#include "engine.h"

#include <pthread.h>

#include <chrono>

#include "util.h"

namespace mccl {

namespace {

Engine* the_engine = nullptr;
std::mutex creation_mutex;
std::atomic<bool> forked{false};

}  // namespace

Engine* Engine::get() {
  if (forked.load(std::memory_order_relaxed)) {
    set_last_error("this process was forked from one that uses mccl, whose engine cannot be "
                   "shared; start it with spawn or forkserver instead");
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(creation_mutex);
  if (the_engine == nullptr) {
    auto* engine = new Engine;
    if (!engine->poller_->ok() || !engine->control_.ok()) {
      set_last_error("the system refused an event queue: too many open files? (ulimit -n)");
      delete engine;
      return nullptr;
    }
    the_engine = engine;
    // The child has the memory but not the threads: it must not wait for them.
    pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
    start_thread([engine] { engine->run(); });
    start_thread([engine] { engine->control_.run(); });
  }
  return the_engine;
}

Engine::Engine() : poller_(make_poller()), sender_(poller_.get()) {}

void Engine::kick() {
  {
    std::lock_guard<std::mutex> lock(idle_mutex_);
    work_ = true;
  }
  idle_.notify_one();
  if (driving_.load()) poller_->wake();
}

void Engine::post(Request request) {
  {
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    inbox_.push_back(std::move(request));
    inbox_filled_.store(true);
  }
  kick();
}

void Engine::run() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(idle_mutex_);
      idle_.wait(lock, [this] { return work_; });
      work_ = false;
    }
    std::lock_guard<std::mutex> driver(drive_mutex_);
    drive(nullptr);
  }
}

bool Engine::submit(Op* op, bool sync) {
  Comm& comm = *op->comm;
  {
    // The number and the place in the queue are taken together: issue order.
    std::lock_guard<std::mutex> issue(comm.issue_mutex);
    if (!op->is_message()) op->sequence = comm.issued.fetch_add(1) + 1;
    op->record.sequence = op->sequence;
    op->record_number = comm.recorder.add(op->record);
    comm.in_flight.fetch_add(1);
    std::lock_guard<std::mutex> lock(inbox_mutex_);
    inbox_.push_back(Request{Request::kOperation, op->comm, op, -1, 0, {}});
    inbox_filled_.store(true);
  }
  if (sync && drive_mutex_.try_lock()) {
    drive(op);
    bool more = !lanes_.empty() || !comms_.empty() || inbox_filled_.load();
    drive_mutex_.unlock();
    if (more) kick();
  } else {
    kick();
  }
  return op->finished();
}

int Engine::wait(Op* op, int64_t timeout_us) {
  if (!op->finished()) {
    waiters_.fetch_add(1);
    std::unique_lock<std::mutex> lock(done_mutex_);
    auto over = [op] { return op->finished(); };
    bool finished = true;
    if (timeout_us < 0) {
      done_.wait(lock, over);
    } else {
      finished = done_.wait_for(lock, std::chrono::microseconds(timeout_us), over);
    }
    waiters_.fetch_sub(1);
    if (!finished) return MCCL_WAIT_TIMEOUT;
  }
  return op->load_state() == OpState::kDone ? MCCL_OK : MCCL_BROKEN;
}

uint64_t Engine::wait_completion(uint64_t cursor, int64_t timeout_us) {
  waiters_.fetch_add(1);
  std::unique_lock<std::mutex> lock(done_mutex_);
  done_.wait_for(lock, std::chrono::microseconds(timeout_us),
                 [&] { return completions_ > cursor; });
  waiters_.fetch_sub(1);
  return completions_;
}

void Engine::close(const std::shared_ptr<Comm>& comm) {
  Request request{Request::kClose, comm, nullptr, -1, 0, {}};
  waiters_.fetch_add(1);
  post(std::move(request));
  std::unique_lock<std::mutex> lock(done_mutex_);
  done_.wait(lock, [&] { return comm->closed.load(); });
  waiters_.fetch_sub(1);
}

}  // namespace mccl
