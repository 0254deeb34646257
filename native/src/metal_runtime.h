// metal_runtime.h: the foreign functions the Metal bridge calls, found at run time.
#pragma once

#include <string>

namespace mccl::metal {

using Id = void*;
using Selector = void*;

// Objective-C runtime, libdispatch, Metal and libtorch, as plain C symbols.
class Runtime {
 public:
  // False with a reason when a symbol is missing: no macOS, no libtorch, or a libtorch that
  // stopped exporting what torch/mps.h declares.
  bool load(const char* torch_library, std::string& why);

  // Sends a message whose arguments and result fit in registers as declared by the caller.
  template <class Result, class... Arguments>
  Result send(Id object, Selector selector, Arguments... arguments) const {
    using Method = Result (*)(Id, Selector, Arguments...);
    return reinterpret_cast<Method>(msg_send_)(object, selector, arguments...);
  }

  Selector selector(const char* name) const { return register_name_(name); }
  Id default_device() const { return create_device_(); }

  // torch::mps: call the first and the last only with the queue held (run_on_queue).
  Id command_buffer() const { return get_command_buffer_(); }
  void run_on_queue(void* context, void (*work)(void*)) const {
    dispatch_sync_(get_dispatch_queue_(), context, work);
  }
  void commit() const { commit_(); }

  void* pool_push() const { return pool_push_(); }
  void pool_pop(void* pool) const { pool_pop_(pool); }

 private:
  using Function = void (*)();
  Function msg_send_ = nullptr;
  Selector (*register_name_)(const char*) = nullptr;
  void* (*pool_push_)() = nullptr;
  void (*pool_pop_)(void*) = nullptr;
  Id (*create_device_)() = nullptr;
  void (*dispatch_sync_)(void* queue, void* context, void (*work)(void*)) = nullptr;
  Id (*get_command_buffer_)() = nullptr;
  void* (*get_dispatch_queue_)() = nullptr;
  void (*commit_)() = nullptr;
};

// Every message we send may create temporaries; engine threads have no pool of their own.
class Pool {
 public:
  explicit Pool(const Runtime& runtime) : runtime_(runtime), pool_(runtime.pool_push()) {}
  ~Pool() { runtime_.pool_pop(pool_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

 private:
  const Runtime& runtime_;
  void* pool_;
};

}  // namespace mccl::metal
