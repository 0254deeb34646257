// messages.cc: the exported symbols, and what each message does.
#include <cstring>
#include <map>

#include "objects.h"

using namespace standin;

namespace {

struct Name : Object {
  Name() : Object(Kind::kName) {}
};
struct Device : Object {
  Device() : Object(Kind::kDevice) {}
  Name name;
};

// Arguments beyond those a message has are whatever the registers held; none is read.
using Word = uint64_t;
using Handler = Word (*)(Object*, Word, Word, Word, Word, Word);

template <class T>
T* as(Object* object, Kind kind, const char* selector) {
  if (object->kind != kind) die(std::string("unrecognized selector ") + selector);
  if (object->references <= 0) die(std::string("message ") + selector + " to a released object");
  return static_cast<T*>(object);
}

template <class T>
T* argument(Word word, Kind kind, const char* selector) {
  if (word == 0) die(std::string("nil argument of ") + selector);
  return as<T>(reinterpret_cast<Object*>(word), kind, selector);
}

void add(CommandBuffer* buffer, Command command) {
  for (Object* object : command.uses) retain(object);
  buffer->commands.push_back(std::move(command));
}

void count(uint64_t standin_counts::* which) {
  Gpu& gpu = Gpu::instance();
  std::lock_guard<std::mutex> lock(gpu.mutex);
  gpu.counts.*which += 1;
}

Word encode_signal(Object* self, Word event_word, Word value, Word, Word, Word) {
  constexpr const char* kName = "encodeSignalEvent:value:";
  auto* buffer = as<CommandBuffer>(self, Kind::kCommandBuffer, kName);
  auto* event = argument<Event>(event_word, Kind::kEvent, kName);
  Stream::instance().must_be_encodable(buffer, kName);
  count(&standin_counts::signals);
  Command command;
  command.uses = {event};
  command.run = [event, value] { Gpu::instance().raise(event, value, "the GPU"); };
  add(buffer, std::move(command));
  return 0;
}

Word encode_wait(Object* self, Word event_word, Word value, Word, Word, Word) {
  constexpr const char* kName = "encodeWaitForEvent:value:";
  auto* buffer = as<CommandBuffer>(self, Kind::kCommandBuffer, kName);
  auto* event = argument<Event>(event_word, Kind::kEvent, kName);
  Stream::instance().must_be_encodable(buffer, kName);
  count(&standin_counts::waits);
  Command command;
  command.uses = {event};
  command.wait_for = event;
  command.value = value;
  add(buffer, std::move(command));
  return 0;
}

Word blit_encoder(Object* self, Word, Word, Word, Word, Word) {
  constexpr const char* kName = "blitCommandEncoder";
  auto* buffer = as<CommandBuffer>(self, Kind::kCommandBuffer, kName);
  Stream::instance().must_be_encodable(buffer, kName);
  auto* encoder = new Encoder(buffer);
  buffer->encoder = encoder;
  autorelease(encoder);
  return reinterpret_cast<Word>(encoder);
}

Word copy(Object* self, Word source_word, Word source_offset, Word target_word, Word target_offset,
          Word size) {
  constexpr const char* kName = "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:";
  auto* encoder = as<Encoder>(self, Kind::kEncoder, kName);
  if (encoder->ended) die("copy on an encoder that has ended");
  Stream::instance().check_access(kName);
  auto* source = argument<Buffer>(source_word, Kind::kBuffer, kName);
  auto* target = argument<Buffer>(target_word, Kind::kBuffer, kName);
  if (source_offset + size > source->bytes.size() || target_offset + size > target->bytes.size()) {
    die("a blit ran past its buffer");
  }
  count(&standin_counts::copies);
  Command command;
  command.uses = {source, target};
  command.run = [=] {
    const uint64_t half = size / 2;
    uint8_t* to = target->bytes.data() + target_offset;
    const uint8_t* from = source->bytes.data() + source_offset;
    std::memcpy(to, from, half);
    Gpu::instance().pause();
    std::memcpy(to + half, from + half, size - half);
  };
  add(encoder->buffer, std::move(command));
  return 0;
}

Word end_encoding(Object* self, Word, Word, Word, Word, Word) {
  auto* encoder = as<Encoder>(self, Kind::kEncoder, "endEncoding");
  if (encoder->ended) die("endEncoding twice");
  encoder->ended = true;
  encoder->buffer->encoder = nullptr;
  return 0;
}

Word new_event(Object* self, Word, Word, Word, Word, Word) {
  as<Device>(self, Kind::kDevice, "newSharedEvent");
  count_live(Kind::kEvent, 1);
  return reinterpret_cast<Word>(new Event);
}

Word new_buffer(Object* self, Word bytes, Word options, Word, Word, Word) {
  as<Device>(self, Kind::kDevice, "newBufferWithLength:options:");
  if (options != 0) die("newBufferWithLength: only MTLResourceStorageModeShared is expected");
  return reinterpret_cast<Word>(standin_buffer_create(bytes, 0));
}

Word contents(Object* self, Word, Word, Word, Word, Word) {
  auto* buffer = as<Buffer>(self, Kind::kBuffer, "contents");
  if (buffer->is_private) die("contents of a buffer with private storage");
  return reinterpret_cast<Word>(buffer->bytes.data());
}

const std::map<std::string, Handler>& handlers() {
  static const std::map<std::string, Handler> table = {
      {"encodeSignalEvent:value:", encode_signal},
      {"encodeWaitForEvent:value:", encode_wait},
      {"blitCommandEncoder", blit_encoder},
      {"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", copy},
      {"endEncoding", end_encoding},
      {"newSharedEvent", new_event},
      {"newBufferWithLength:options:", new_buffer},
      {"contents", contents},
      {"release", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         release(self);
         return 0;
       }},
      {"retain", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         retain(self);
         return reinterpret_cast<Word>(self);
       }},
      {"name", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         return reinterpret_cast<Word>(&as<Device>(self, Kind::kDevice, "name")->name);
       }},
      {"UTF8String", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         as<Name>(self, Kind::kName, "UTF8String");
         return reinterpret_cast<Word>("stand-in GPU");
       }},
      {"signaledValue", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         return Gpu::instance().read(as<Event>(self, Kind::kEvent, "signaledValue"));
       }},
      {"setSignaledValue:", [](Object* self, Word value, Word, Word, Word, Word) -> Word {
         Gpu::instance().raise(as<Event>(self, Kind::kEvent, "setSignaledValue:"), value,
                               "the CPU");
         return 0;
       }},
      {"length", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         return as<Buffer>(self, Kind::kBuffer, "length")->bytes.size();
       }},
      {"storageMode", [](Object* self, Word, Word, Word, Word, Word) -> Word {
         return as<Buffer>(self, Kind::kBuffer, "storageMode")->is_private ? 2 : 0;
       }},
  };
  return table;
}

}  // namespace

// A selector is the address of its handler's table entry; unknown ones are named when sent.
STANDIN_API void* sel_registerName(const char* name) {
  const auto found = handlers().find(name);
  if (found == handlers().end()) die(std::string("unknown selector ") + name);
  return const_cast<Handler*>(&found->second);
}

STANDIN_API Word objc_msgSend(void* self, void* selector, Word a, Word b, Word c, Word d, Word e) {
  if (self == nullptr) return 0;  // as messages to nil do
  return (*static_cast<const Handler*>(selector))(static_cast<Object*>(self), a, b, c, d, e);
}

STANDIN_API void* objc_autoreleasePoolPush(void) { return pool_push(); }
STANDIN_API void objc_autoreleasePoolPop(void* pool) { pool_pop(pool); }

STANDIN_API void* MTLCreateSystemDefaultDevice(void) {
  static Device* device = new Device;  // the system holds one reference
  retain(device);
  return device;
}

STANDIN_API void dispatch_sync_f(void*, void* context, void (*work)(void*)) {
  Stream::instance().on_queue(context, work);
}

STANDIN_API void* _ZN5torch3mps18get_dispatch_queueEv(void) { return &Stream::instance(); }
STANDIN_API void* _ZN5torch3mps18get_command_bufferEv(void) {
  return Stream::instance().command_buffer();
}
STANDIN_API void _ZN5torch3mps6commitEv(void) { Stream::instance().commit(); }
