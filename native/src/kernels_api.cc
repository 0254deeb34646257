// The kernels' part of mccl.h.
#include "mccl.h"
#include "reduce.h"


#if defined(__clang__)
#define MCCL_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define MCCL_COMPILER "gcc " __VERSION__
#endif
#if defined(__x86_64__)
#define MCCL_TARGET "x86_64"
#elif defined(__aarch64__)
#define MCCL_TARGET "aarch64"
#else
#define MCCL_TARGET "other"
#endif
#if defined(__SANITIZE_ADDRESS__)
#define MCCL_SANITIZER " address-sanitizer"
#elif defined(__SANITIZE_THREAD__)
#define MCCL_SANITIZER " thread-sanitizer"
#else
#define MCCL_SANITIZER ""
#endif

extern "C" {

int mccl_reduce(uint32_t dtype, uint32_t redop, void* dst, const void* a, const void* b, size_t n) {
  const mccl::BinaryFn reduce = mccl::find_reduce(dtype, dtype, redop);
  if (reduce == nullptr) return MCCL_INVALID;
  reduce(dst, a, b, n);
  return MCCL_OK;
}

int mccl_reduce_supported(uint32_t dtype, uint32_t redop) {
  return mccl::find_reduce(dtype, dtype, redop) != nullptr ? 1 : 0;
}

int mccl_convert(uint32_t dst_dtype, void* dst, uint32_t src_dtype, const void* src, size_t n) {
  const mccl::UnaryFn convert = mccl::find_convert(dst_dtype, src_dtype);
  if (convert == nullptr) return MCCL_INVALID;
  convert(dst, src, n);
  return MCCL_OK;
}

int mccl_divide(uint32_t dtype, void* dst, const void* src, size_t n, uint32_t divisor) {
  const mccl::DivideFn divide = mccl::find_divide(dtype);
  if (divide == nullptr || divisor == 0) return MCCL_INVALID;
  divide(dst, src, n, divisor);
  return MCCL_OK;
}

uint32_t mccl_crc32c(uint32_t crc, const void* data, size_t n) {
  return mccl::crc32c(crc, data, n);
}

const char* mccl_kernel_isa(const char* force) {
  if (force != nullptr && !mccl::select_isa(force)) return nullptr;
  return mccl::kernel_isa();
}

int mccl_abi_version(void) { return MCCL_ABI_VERSION; }

const char* mccl_build_info(void) {
  return MCCL_COMPILER " " MCCL_TARGET MCCL_SANITIZER;
}

}  // extern "C"
