# Cross-build for 64-bit ARM Linux with Debian's g++-aarch64-linux-gnu, tests run by qemu-user:
#   cmake -S native -B build/native-aarch64 -DMCCL_BUILD_TESTS=ON \
#         -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# qemu-user then needs no ARM libraries.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
