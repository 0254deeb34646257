// objects.cc: reference counts, autorelease pools and the graveyard.
#include <cstdio>
#include <cstdlib>

#include "objects.h"

namespace standin {
namespace {

thread_local std::vector<std::vector<Object*>> pools;

std::mutex graveyard_mutex;
std::vector<Object*> graveyard;

}  // namespace

void die(const std::string& why) {
  std::fprintf(stderr, "stand-in Metal: %s\n", why.c_str());
  std::fflush(stderr);
  std::abort();
}

uint64_t this_thread() {
  static std::atomic<uint64_t> next{1};
  thread_local uint64_t id = next.fetch_add(1);
  return id;
}

void retain(Object* object) {
  if (object->references.fetch_add(1) <= 0) die("retain of a released object");
}

void release(Object* object) {
  const int left = object->references.fetch_sub(1) - 1;
  if (left < 0) die("over-release: an object was released more often than retained");
  if (left == 0) bury(object);
}

void bury(Object* object) {
  count_live(object->kind, -1);
  std::lock_guard<std::mutex> lock(graveyard_mutex);
  graveyard.push_back(object);
}

void empty_graveyard() {
  std::lock_guard<std::mutex> lock(graveyard_mutex);
  for (Object* object : graveyard) delete object;
  graveyard.clear();
}

void autorelease(Object* object) {
  if (pools.empty()) die("an object was autoreleased with no pool in place: it leaks");
  pools.back().push_back(object);
}

void* pool_push() {
  pools.emplace_back();
  return reinterpret_cast<void*>(pools.size());
}

void pool_pop(void* pool) {
  if (reinterpret_cast<size_t>(pool) != pools.size()) die("autorelease pools popped out of order");
  for (Object* object : pools.back()) release(object);
  pools.pop_back();
}

}  // namespace standin
