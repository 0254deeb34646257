// metal.cc: tickets between the engine and PyTorch's MPS stream.
//
// Theory of operation. A ticket is an MTLSharedEvent: the GPU signals or waits for it by
// commands on PyTorch's own command buffer, the CPU reads or raises it by messages. The
// command buffer belongs to PyTorch's serial dispatch queue; every encode here runs inside
// dispatch_sync_f on that queue, gets the command buffer there (which ends PyTorch's open
// encoder), encodes, and for signals commits. Holding the queue keeps other code that
// respects it out; rule O3 keeps out code that does not, and `Encoding` refuses a second
// thread instead of letting Metal abort the process.
//
// Ownership follows Cocoa's naming rule: what a message whose name begins with "new" or
// MTLCreateSystemDefaultDevice returned is ours to release, anything else is not.

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "mccl_metal.h"
#include "metal_runtime.h"

using mccl::metal::Id;
using mccl::metal::Pool;
using mccl::metal::Runtime;
using mccl::metal::Selector;

namespace {

thread_local std::string last_error;

int invalid(std::string why) {
  last_error = std::move(why);
  return MCCL_INVALID;
}

constexpr uint64_t kStorageModeShared = 0;     // MTLStorageModeShared
constexpr uint64_t kResourceOptionsShared = 0;  // MTLResourceStorageModeShared

struct Selectors {
  Selector release, name, utf8, new_event, signaled, set_signaled, encode_signal, encode_wait;
  Selector contents, length, storage_mode, new_buffer, blit_encoder, copy, end_encoding;

  explicit Selectors(const Runtime& r)
      : release(r.selector("release")),
        name(r.selector("name")),
        utf8(r.selector("UTF8String")),
        new_event(r.selector("newSharedEvent")),
        signaled(r.selector("signaledValue")),
        set_signaled(r.selector("setSignaledValue:")),
        encode_signal(r.selector("encodeSignalEvent:value:")),
        encode_wait(r.selector("encodeWaitForEvent:value:")),
        contents(r.selector("contents")),
        length(r.selector("length")),
        storage_mode(r.selector("storageMode")),
        new_buffer(r.selector("newBufferWithLength:options:")),
        blit_encoder(r.selector("blitCommandEncoder")),
        copy(r.selector("copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:")),
        end_encoding(r.selector("endEncoding")) {}
};

}  // namespace

struct mccl_metal {
  explicit mccl_metal(const Runtime& r) : runtime(r), selectors(r) {}
  Runtime runtime;
  Selectors selectors;
  Id device = nullptr;
  std::string device_name;
  std::atomic<bool> encoding{false};
};

struct mccl_metal_event {
  mccl_metal* metal;
  Id event;
  std::mutex raising;
};

namespace {

// One encode at a time (O3): a second thread finds the flag taken.
class Encoding {
 public:
  explicit Encoding(mccl_metal* metal) : metal_(metal) {
    bool expected = false;
    owned_ = metal->encoding.compare_exchange_strong(expected, true, std::memory_order_acquire);
  }
  ~Encoding() {
    if (owned_) metal_->encoding.store(false, std::memory_order_release);
  }
  Encoding(const Encoding&) = delete;
  Encoding& operator=(const Encoding&) = delete;
  bool owned() const { return owned_; }

 private:
  mccl_metal* metal_;
  bool owned_;
};

// Runs work(command_buffer) with PyTorch's queue held.
template <class Work>
int encode(mccl_metal* metal, Work work) {
  Encoding encoding(metal);
  if (!encoding.owned()) {
    return invalid(
        "two threads encode on PyTorch's MPS stream at once (O3): issue and wait for collectives "
        "of MPS tensors on the thread that runs the model");
  }
  struct Context {
    mccl_metal* metal;
    Work* work;
    bool encoded;
  } context{metal, &work, false};
  metal->runtime.run_on_queue(&context, [](void* raw) {
    auto* c = static_cast<Context*>(raw);
    Pool pool(c->metal->runtime);
    if (Id buffer = c->metal->runtime.command_buffer()) {
      (*c->work)(buffer);
      c->encoded = true;
    }
  });
  return context.encoded ? MCCL_OK : invalid("PyTorch's MPS stream has no command buffer");
}

uint64_t read_event(void* context) {
  auto* event = static_cast<mccl_metal_event*>(context);
  const mccl_metal& metal = *event->metal;
  Pool pool(metal.runtime);
  return metal.runtime.send<uint64_t>(event->event, metal.selectors.signaled);
}

void raise_event(void* context, uint64_t value) {
  auto* event = static_cast<mccl_metal_event*>(context);
  const mccl_metal& metal = *event->metal;
  Pool pool(metal.runtime);
  std::lock_guard<std::mutex> lock(event->raising);
  if (metal.runtime.send<uint64_t>(event->event, metal.selectors.signaled) < value) {
    metal.runtime.send<void>(event->event, metal.selectors.set_signaled, value);
  }
}

}  // namespace

extern "C" {

const char* mccl_metal_error(void) { return last_error.c_str(); }

mccl_metal* mccl_metal_open(const char* torch_library) {
  Runtime runtime;
  std::string why;
  if (!runtime.load(torch_library, why)) {
    invalid(std::move(why));
    return nullptr;
  }
  Pool pool(runtime);
  std::unique_ptr<mccl_metal> metal(new (std::nothrow) mccl_metal(runtime));
  if (metal == nullptr) return nullptr;
  metal->device = metal->runtime.default_device();
  if (metal->device == nullptr) {
    invalid("this machine has no Metal device");
    return nullptr;
  }
  Id name = runtime.send<Id>(metal->device, metal->selectors.name);
  const char* text = name == nullptr ? nullptr : runtime.send<const char*>(name, metal->selectors.utf8);
  metal->device_name = text == nullptr ? "unknown" : text;
  return metal.release();
}

void mccl_metal_close(mccl_metal* metal) {
  if (metal == nullptr) return;
  {
    Pool pool(metal->runtime);
    metal->runtime.send<void>(metal->device, metal->selectors.release);
  }
  delete metal;
}

const char* mccl_metal_device_name(mccl_metal* metal) { return metal->device_name.c_str(); }

mccl_metal_event* mccl_metal_event_create(mccl_metal* metal) {
  Pool pool(metal->runtime);
  Id event = metal->runtime.send<Id>(metal->device, metal->selectors.new_event);
  if (event == nullptr) {
    invalid("the Metal device refused a new shared event");
    return nullptr;
  }
  return new mccl_metal_event{metal, event, {}};
}

void mccl_metal_event_destroy(mccl_metal_event* event) {
  if (event == nullptr) return;
  {
    Pool pool(event->metal->runtime);
    event->metal->runtime.send<void>(event->event, event->metal->selectors.release);
  }
  delete event;
}

void mccl_metal_event_ticket(mccl_metal_event* event, mccl_ticket* out) {
  out->read = read_event;
  out->raise = raise_event;
  out->context = event;
}

uint64_t mccl_metal_event_read(mccl_metal_event* event) { return read_event(event); }

void mccl_metal_event_raise(mccl_metal_event* event, uint64_t value) { raise_event(event, value); }

int mccl_metal_encode_signal(mccl_metal* metal, mccl_metal_event* event, uint64_t value) {
  return encode(metal, [=](Id buffer) {
    metal->runtime.send<void>(buffer, metal->selectors.encode_signal, event->event, value);
    metal->runtime.commit();
  });
}

int mccl_metal_encode_wait(mccl_metal* metal, mccl_metal_event* event, uint64_t value) {
  return encode(metal, [=](Id buffer) {
    metal->runtime.send<void>(buffer, metal->selectors.encode_wait, event->event, value);
  });
}

int mccl_metal_encode_copy(mccl_metal* metal, void* source, uint64_t source_offset,
                           void* destination, uint64_t destination_offset, uint64_t bytes) {
  return encode(metal, [=](Id buffer) {
    const Runtime& runtime = metal->runtime;
    Id encoder = runtime.send<Id>(buffer, metal->selectors.blit_encoder);
    runtime.send<void>(encoder, metal->selectors.copy, source, source_offset, destination,
                       destination_offset, bytes);
    runtime.send<void>(encoder, metal->selectors.end_encoding);
  });
}

int mccl_metal_describe(mccl_metal* metal, void* buffer, mccl_metal_buffer* out) {
  if (buffer == nullptr) return invalid("a null MTLBuffer has no contents");
  Pool pool(metal->runtime);
  const Runtime& runtime = metal->runtime;
  out->storage_mode = runtime.send<uint64_t>(buffer, metal->selectors.storage_mode);
  out->length = runtime.send<uint64_t>(buffer, metal->selectors.length);
  // -contents of private storage is undefined, so it is not asked for.
  out->contents = out->storage_mode == kStorageModeShared
                      ? runtime.send<void*>(buffer, metal->selectors.contents)
                      : nullptr;
  return MCCL_OK;
}

void* mccl_metal_buffer_create(mccl_metal* metal, uint64_t bytes) {
  Pool pool(metal->runtime);
  Id buffer = metal->runtime.send<Id>(metal->device, metal->selectors.new_buffer, bytes,
                                      kResourceOptionsShared);
  if (buffer == nullptr) {
    invalid("the Metal device refused a shared buffer of " + std::to_string(bytes) + " bytes");
  }
  return buffer;
}

void mccl_metal_buffer_release(mccl_metal* metal, void* buffer) {
  Pool pool(metal->runtime);
  metal->runtime.send<void>(buffer, metal->selectors.release);
}

}  // extern "C"
