#include "metal_runtime.h"

#include <dlfcn.h>

namespace mccl::metal {
namespace {

constexpr const char* kObjectiveC = "/usr/lib/libobjc.A.dylib";
constexpr const char* kSystem = "/usr/lib/libSystem.B.dylib";
constexpr const char* kMetal = "/System/Library/Frameworks/Metal.framework/Metal";

// A symbol already in the process wins, so that we speak to the libtorch that Python
// imported and never load a second one.
void* find(const char* library, int flags, const char* name) {
  if (void* address = dlsym(RTLD_DEFAULT, name)) return address;
  if (library == nullptr) return nullptr;
  void* handle = dlopen(library, flags);
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

template <class Function>
bool bind(Function& out, const char* library, int flags, const char* name, std::string& why) {
  void* address = find(library, flags, name);
  if (address == nullptr) {
    why = std::string("symbol ") + name + " was found neither in the process nor in " +
          (library == nullptr ? "any library" : library);
    return false;
  }
  out = reinterpret_cast<Function>(address);
  return true;
}

}  // namespace

bool Runtime::load(const char* torch_library, std::string& why) {
  constexpr int kLoad = RTLD_LAZY | RTLD_LOCAL;
  constexpr int kLoadedOnly = RTLD_LAZY | RTLD_NOLOAD;
  return bind(msg_send_, kObjectiveC, kLoad, "objc_msgSend", why) &&
         bind(register_name_, kObjectiveC, kLoad, "sel_registerName", why) &&
         bind(pool_push_, kObjectiveC, kLoad, "objc_autoreleasePoolPush", why) &&
         bind(pool_pop_, kObjectiveC, kLoad, "objc_autoreleasePoolPop", why) &&
         bind(dispatch_sync_, kSystem, kLoad, "dispatch_sync_f", why) &&
         bind(create_device_, kMetal, kLoad, "MTLCreateSystemDefaultDevice", why) &&
         bind(get_command_buffer_, torch_library, kLoadedOnly,
              "_ZN5torch3mps18get_command_bufferEv", why) &&
         bind(get_dispatch_queue_, torch_library, kLoadedOnly,
              "_ZN5torch3mps18get_dispatch_queueEv", why) &&
         bind(commit_, torch_library, kLoadedOnly, "_ZN5torch3mps6commitEv", why);
}

}  // namespace mccl::metal
