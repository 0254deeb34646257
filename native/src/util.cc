#include "util.h"

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

#include "mccl.h"

namespace mccl {

namespace {
thread_local std::string last_error_text;
}

void set_last_error(std::string text) { last_error_text = std::move(text); }
const char* last_error() { return last_error_text.c_str(); }

void start_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread(std::move(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

const char* collective_name(uint32_t collective) {
  static const char* const names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "reduce",     "gather",         "scatter",    "all_to_all",
                                      "barrier",    "send",           "recv"};
  return collective < sizeof(names) / sizeof(names[0]) ? names[collective] : "nothing";
}

const char* dtype_name(uint32_t dtype) {
  static const char* const names[] = {"uint8",    "int8",    "int16",   "int32",
                                      "int64",    "float16", "bfloat16", "float32",
                                      "float64",  "bool",    "complex64", "complex128"};
  return dtype < sizeof(names) / sizeof(names[0]) ? names[dtype] : "unknown dtype";
}

const char* redop_name(uint32_t redop) {
  static const char* const names[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                      "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  return redop < sizeof(names) / sizeof(names[0]) ? names[redop] : "";
}

}  // namespace mccl
