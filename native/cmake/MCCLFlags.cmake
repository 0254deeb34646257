# Warnings and sanitizers, shared by the library and its tests.

add_library(mccl_flags INTERFACE)
target_compile_options(mccl_flags INTERFACE -Wall -Wextra $<$<BOOL:${MCCL_WERROR}>:-Werror>)

if(MCCL_SANITIZE)
  if(NOT MCCL_SANITIZE MATCHES "^(address|undefined|address,undefined|thread)$")
    message(FATAL_ERROR "MCCL_SANITIZE=${MCCL_SANITIZE} is unknown; accepted: address, undefined, "
                        "address,undefined, thread, or empty.")
  endif()
  set(sanitizer_flags -fsanitize=${MCCL_SANITIZE} -fno-omit-frame-pointer -g)
  if(MCCL_SANITIZE MATCHES "undefined")
    list(APPEND sanitizer_flags -fno-sanitize-recover=undefined)
  endif()
  target_compile_options(mccl_flags INTERFACE ${sanitizer_flags} -O1)
  target_link_options(mccl_flags INTERFACE ${sanitizer_flags})
endif()

if(MCCL_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    message(FATAL_ERROR "MCCL_FUZZ needs clang on Linux, not ${CMAKE_CXX_COMPILER_ID} on "
                        "${CMAKE_SYSTEM_NAME}: pass -DCMAKE_CXX_COMPILER=clang++.")
  endif()
  if(MCCL_SANITIZE)
    message(FATAL_ERROR "MCCL_FUZZ brings its own sanitizers: leave MCCL_SANITIZE empty.")
  endif()
  target_compile_options(mccl_flags INTERFACE
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer -g -O1)
  # Small, so that small inputs fill whole pieces.
  target_compile_definitions(mccl_flags INTERFACE MCCL_PIECE_BYTES=2048)
  target_link_options(mccl_flags INTERFACE -fsanitize=address,undefined)
endif()
