# The linker keeps one copy of a common (weak) function. Objects compiled with -m flags must
# define none, or code of a newer instruction set could be the copy that everyone runs.
#   cmake -DNM=... -DOBJECTS=a.o;b.o -P no_shared_code.cmake
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "/(reduce_(avx2|avx512|neon|generic)|crc32c_(sse42|arm))\\.cc\\.o$")
    continue()
  endif()
  execute_process(COMMAND "${NM}" "${object}" OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  string(REGEX MATCHALL "[0-9a-f]+ [WVu] [^\n]+" shared "${symbols}")
  # Sanitizer runtimes emit markers of their own; they are data every object agrees on.
  list(FILTER shared EXCLUDE REGEX " (__odr_asan|__asan|DW\\.ref)")
  if(shared)
    message(FATAL_ERROR "${object} shares code with other objects:\n${shared}")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(checked LESS 1)
  message(FATAL_ERROR "no object with kernels among: ${OBJECTS}")
endif()
message(STATUS "${checked} objects share no code")
