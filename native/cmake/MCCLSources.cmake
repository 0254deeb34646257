# Which files of src/ this platform compiles, and with which instruction sets.

file(GLOB MCCL_SOURCES CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/*.cc")

function(mccl_drop pattern)
  set(kept ${MCCL_SOURCES})
  list(FILTER kept EXCLUDE REGEX "/src/${pattern}\\.cc$")
  set(MCCL_SOURCES ${kept} PARENT_SCOPE)
endfunction()

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  mccl_drop("poller_epoll")
endif()
if(NOT CMAKE_SYSTEM_NAME MATCHES "Darwin|BSD")
  mccl_drop("poller_kqueue")
endif()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(MCCL_ARCH x86)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(MCCL_ARCH arm64)
else()
  set(MCCL_ARCH other)
endif()
if(NOT MCCL_ARCH STREQUAL "x86")
  mccl_drop("(reduce_avx2|reduce_avx512|crc32c_sse42)")
endif()
if(NOT MCCL_ARCH STREQUAL "arm64")
  mccl_drop("(reduce_neon|crc32c_arm)")
endif()

# Operands must meet in the order the source says, and a*b+c must not become one
# rounding on some machines and two on others: results are equal bit for bit
# between instruction sets.
set(kernel_flags -ffp-contract=off -fno-math-errno)
foreach(source IN LISTS MCCL_SOURCES)
  get_filename_component(stem "${source}" NAME_WE)
  set(flags "")
  if(stem MATCHES "^reduce_")
    list(APPEND flags ${kernel_flags})
  endif()
  if(stem STREQUAL "reduce_avx2")
    list(APPEND flags -mavx2 -mf16c)
  elseif(stem STREQUAL "reduce_avx512")
    list(APPEND flags -mavx2 -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
  elseif(stem STREQUAL "crc32c_sse42")
    list(APPEND flags -msse4.2)
  elseif(stem STREQUAL "crc32c_arm" AND NOT APPLE) # every Apple processor has it
    list(APPEND flags -march=armv8-a+crc)
  endif()
  if(flags)
    set_property(SOURCE "${source}" PROPERTY COMPILE_OPTIONS ${flags})
  endif()
endforeach()

set(MCCL_KERNEL_SOURCES ${MCCL_SOURCES})
list(FILTER MCCL_KERNEL_SOURCES INCLUDE REGEX "/src/(reduce|crc32c|kernels_api)[^/]*$")
list(REMOVE_ITEM MCCL_SOURCES ${MCCL_KERNEL_SOURCES})
