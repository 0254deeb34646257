// stream.cc: PyTorch's MPS stream and the kernels tests run on it.
#include <cstring>

#include "objects.h"

namespace standin {

Stream& Stream::instance() {
  static Stream* stream = new Stream;
  return *stream;
}

void Stream::own(bool own) { owner_ = own ? this_thread() : 0; }

void Stream::on_queue(void* context, void (*work)(void*)) {
  if (holder_ == this_thread()) die("dispatch_sync on a queue this thread already holds: deadlock");
  std::lock_guard<std::mutex> lock(queue_);
  holder_ = this_thread();
  work(context);
  holder_ = 0;
}

void Stream::check_access(const char* what) {
  if (holder_ != this_thread()) {
    die(std::string(what) + " without the stream's dispatch queue held");
  }
  const uint64_t owner = owner_;
  if (owner != 0 && owner != this_thread()) {
    die(std::string(what) + " from a second thread (O3)");
  }
}

void Stream::must_be_encodable(CommandBuffer* buffer, const char* what) {
  check_access(what);
  if (buffer->committed) die(std::string(what) + " on a command buffer that was committed");
  if (buffer->coalescing || buffer->encoder != nullptr) {
    die(std::string(what) + " while another encoder of the command buffer is open");
  }
}

void Stream::end_coalescing() {
  if (open_ != nullptr) open_->coalescing = false;
}

CommandBuffer* Stream::command_buffer() {
  check_access("get_command_buffer");
  end_coalescing();
  if (open_ == nullptr) {
    open_ = new CommandBuffer;
    count_live(Kind::kCommandBuffer, 1);
  }
  return open_;
}

void Stream::commit() {
  check_access("commit");
  CommandBuffer* buffer = command_buffer();
  if (buffer->encoder != nullptr) die("commit while an encoder of the command buffer is open");
  buffer->committed = true;
  open_ = nullptr;
  Gpu::instance().submit(std::move(buffer->commands));
  release(buffer);
}

void Stream::kernel(Command command) {
  struct Context {
    Stream* stream;
    Command* command;
  } context{this, &command};
  on_queue(&context, [](void* raw) {
    auto* c = static_cast<Context*>(raw);
    CommandBuffer* buffer = c->stream->command_buffer();
    buffer->coalescing = true;
    buffer->commands.push_back(std::move(*c->command));
  });
}

namespace {

Buffer* as_buffer(void* raw) {
  auto* buffer = static_cast<Buffer*>(raw);
  if (buffer == nullptr || buffer->kind != Kind::kBuffer || buffer->references <= 0) {
    die("a kernel was given something that is not a live MTLBuffer");
  }
  return buffer;
}

float* floats(Buffer* buffer, uint64_t offset, uint64_t n) {
  if ((offset + n) * sizeof(float) > buffer->bytes.size()) die("a kernel ran past its buffer");
  return reinterpret_cast<float*>(buffer->bytes.data()) + offset;
}

float ramp(uint64_t i, float base, float step) { return base + step * static_cast<float>(i % 251); }

Command over(std::vector<Buffer*> buffers, std::function<void()> run) {
  Command command;
  for (Buffer* buffer : buffers) {
    retain(buffer);
    command.uses.push_back(buffer);
  }
  command.run = std::move(run);
  return command;
}

// A kernel over [0, n) in two halves with a pause between.
void halves(uint64_t n, const std::function<void(uint64_t, uint64_t)>& body) {
  body(0, n / 2);
  Gpu::instance().pause();
  body(n / 2, n);
}

}  // namespace
}  // namespace standin

using namespace standin;

void standin_reset(uint64_t seed, uint32_t max_delay_us) {
  standin_synchronize();
  Gpu::instance().reseed(seed, max_delay_us);
  empty_graveyard();
}

void standin_own_stream(int own) { Stream::instance().own(own != 0); }

void standin_synchronize(void) {
  Stream::instance().on_queue(nullptr, [](void*) { Stream::instance().commit(); });
  Gpu::instance().drain();
}

void* standin_buffer_create(uint64_t bytes, int is_private) {
  count_live(Kind::kBuffer, 1);
  return new Buffer(bytes, is_private != 0);
}

void standin_buffer_release(void* buffer) { release(as_buffer(buffer)); }

void* standin_buffer_bytes(void* buffer) { return as_buffer(buffer)->bytes.data(); }

void standin_ramp(void* raw, uint64_t offset, uint64_t n, float base, float step) {
  Buffer* buffer = as_buffer(raw);
  Stream::instance().kernel(over({buffer}, [=] {
    float* x = floats(buffer, offset, n);
    halves(n, [=](uint64_t from, uint64_t to) {
      for (uint64_t i = from; i < to; ++i) x[i] = ramp(i, base, step);
    });
  }));
}

void standin_affine(void* raw, uint64_t offset, uint64_t n, float a, float b) {
  Buffer* buffer = as_buffer(raw);
  Stream::instance().kernel(over({buffer}, [=] {
    float* x = floats(buffer, offset, n);
    halves(n, [=](uint64_t from, uint64_t to) {
      for (uint64_t i = from; i < to; ++i) x[i] = a * x[i] + b;
    });
  }));
}

void standin_check(void* raw, uint64_t offset, uint64_t n, float base, float step) {
  Buffer* buffer = as_buffer(raw);
  Stream::instance().kernel(over({buffer}, [=] {
    const float* x = floats(buffer, offset, n);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; ++i) wrong += x[i] != ramp(i, base, step);
    Gpu& gpu = Gpu::instance();
    std::lock_guard<std::mutex> lock(gpu.mutex);
    gpu.counts.mismatches += wrong;
    gpu.counts.checked += n;
  }));
}

void standin_pack(void* raw_view, uint64_t view_bytes, const int64_t* sizes,
                  const int64_t* strides, uint64_t item, void* raw_packed, uint64_t packed_bytes,
                  int unpack) {
  Buffer* view = as_buffer(raw_view);
  Buffer* packed = as_buffer(raw_packed);
  const std::vector<int64_t> n(sizes, sizes + 4), s(strides, strides + 4);
  Stream::instance().kernel(over({view, packed}, [=] {
    uint8_t* line = packed->bytes.data() + packed_bytes;
    uint8_t* spread = view->bytes.data() + view_bytes;
    for (int64_t a = 0; a < n[0]; ++a) {
      for (int64_t b = 0; b < n[1]; ++b) {
        for (int64_t c = 0; c < n[2]; ++c) {
          for (int64_t d = 0; d < n[3]; ++d, line += item) {
            const int64_t at = a * s[0] + b * s[1] + c * s[2] + d * s[3];
            uint8_t* element = spread + at * static_cast<int64_t>(item);
            std::memcpy(unpack ? element : line, unpack ? line : element, item);
          }
        }
      }
    }
  }));
}

void standin_get_counts(standin_counts* out) {
  Gpu& gpu = Gpu::instance();
  std::lock_guard<std::mutex> lock(gpu.mutex);
  *out = gpu.counts;
}
