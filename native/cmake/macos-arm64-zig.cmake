# Cross-build for Apple silicon, macOS 11 or newer, with the compiler, headers and linker of the
# PyPI package ziglang. MCCL_PYTHON names a Python that has it (default: python3).
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_SYSTEM_VERSION 20)

if(NOT MCCL_PYTHON)
  set(MCCL_PYTHON python3)
endif()
# CMake's own try_compile projects read this file too, and must find the same Python.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MCCL_PYTHON)
set(CMAKE_CXX_COMPILER "${MCCL_PYTHON}" -m ziglang c++ -target aarch64-macos.11.0)

# zig brings what macOS calls the SDK, and nothing here needs Apple's binary tools.
set(CMAKE_OSX_SYSROOT "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "")
set(CMAKE_OSX_ARCHITECTURES "")
set(CMAKE_INSTALL_NAME_TOOL ":")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
