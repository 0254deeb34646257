// Checks for native tests: a failed one is printed and counted, and the process exits 1.
#ifndef MCCL_TESTS_CHECK_H
#define MCCL_TESTS_CHECK_H

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace check {

inline int failures = 0;
inline long checks = 0;

__attribute__((format(printf, 4, 5))) inline void that(bool ok, const char* file, int line,
                                                       const char* format, ...) {
  checks++;
  if (ok) return;
  std::fprintf(stderr, "%s:%d: ", file, line);
  va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
  if (++failures == 20) {
    std::fprintf(stderr, "giving up after %d failures\n", failures);
    std::exit(1);
  }
}

// Last line of main: a test that checked nothing is no test.
inline int result() {
  std::printf("%ld checks, %d failures\n", checks, failures);
  if (checks == 0) std::fprintf(stderr, "nothing was checked\n");
  return failures == 0 && checks > 0 ? 0 : 1;
}

inline constexpr int kSkipped = 77;  // what CTest is told to read as "skipped"

}  // namespace check

#define CHECK(condition) check::that((condition), __FILE__, __LINE__, "%s", #condition)
#define CHECK_MSG(condition, ...) check::that((condition), __FILE__, __LINE__, __VA_ARGS__)

#endif  // MCCL_TESTS_CHECK_H
