// Which kernels run: by the processor once, by dtype and operation a call.
#include "reduce.h"

#include <atomic>
#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "reduce_table.h"

namespace mccl {
namespace {

#if defined(__x86_64__)
bool has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
  __builtin_cpu_init();
  return f16c && __builtin_cpu_supports("avx2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

struct Candidate {
  const Kernels* kernels;
  bool (*available)();
};

// Best first.
constexpr Candidate kCandidates[] = {
#if defined(__x86_64__)
    {&kernels_avx512, has_avx512},
    {&kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&kernels_neon, [] { return true; }},
#endif
    {&kernels_generic, [] { return true; }},
};

const Kernels* best() {
  for (const Candidate& c : kCandidates) {
    if (c.available()) return c.kernels;
  }
  return &kernels_generic;
}

std::atomic<const Kernels*>& selected() {
  static std::atomic<const Kernels*> kernels{best()};
  return kernels;
}

const Kernels& active() { return *selected().load(std::memory_order_acquire); }

// The row of a 16-bit float in the tables; -1 for any other dtype.
int half_kind(uint32_t dtype) {
  if (dtype == MCCL_F16) return kHalfF16;
  if (dtype == MCCL_BF16) return kHalfBF16;
  return -1;
}

template <size_t kSize>
void copy(void* dst, const void* src, size_t n) {
  if (dst != src && n != 0) std::memmove(dst, src, n * kSize);
}

UnaryFn find_copy(uint32_t dtype) {
  switch (dtype_size(dtype)) {
    case 1:
      return copy<1>;
    case 2:
      return copy<2>;
    case 4:
      return copy<4>;
    case 8:
      return copy<8>;
    case 16:
      return copy<16>;
    default:
      return nullptr;
  }
}

}  // namespace

BinaryFn find_reduce(uint32_t acc_dtype, uint32_t in_dtype, uint32_t redop) {
  if (acc_dtype >= kDTypeCount || redop >= kRedOpCount) return nullptr;
  if (acc_dtype == in_dtype) return active().reduce[acc_dtype][redop];
  const int half = half_kind(in_dtype);
  return acc_dtype == MCCL_F32 && half >= 0 ? active().reduce_half[half][redop] : nullptr;
}

BinaryFn find_reduce_swapped(uint32_t acc_dtype, uint32_t in_dtype, uint32_t redop) {
  if (acc_dtype >= kDTypeCount || redop >= kRedOpCount) return nullptr;
  if (acc_dtype == in_dtype) return active().swapped[acc_dtype][redop];
  const int half = half_kind(in_dtype);
  return acc_dtype == MCCL_F32 && half >= 0 ? active().swapped_half[half][redop] : nullptr;
}

UnaryFn find_convert(uint32_t dst_dtype, uint32_t src_dtype) {
  if (dst_dtype == src_dtype) return find_copy(dst_dtype);
  if (dst_dtype == MCCL_F32 && half_kind(src_dtype) >= 0) {
    return active().widen[half_kind(src_dtype)];
  }
  if (src_dtype == MCCL_F32 && half_kind(dst_dtype) >= 0) {
    return active().narrow[half_kind(dst_dtype)];
  }
  return nullptr;
}

DivideFn find_divide(uint32_t dtype) {
  return dtype < kDTypeCount ? active().divide[dtype] : nullptr;
}

ScaleFn find_scale(uint32_t dtype) {
  return dtype < kDTypeCount ? active().scale[dtype] : nullptr;
}

bool scale_factor_ok(uint32_t dtype, double factor) {
  switch (dtype) {
    case MCCL_U8:
    case MCCL_I8:
    case MCCL_I16:
    case MCCL_I32:
    case MCCL_I64:
      return std::abs(factor) <= 0x1p53 && factor == std::trunc(factor);
    default:
      return find_scale(dtype) != nullptr;
  }
}

UnaryFn find_round(uint32_t dtype, uint32_t wire_dtype) {
  const int half = half_kind(wire_dtype);
  return dtype == MCCL_F32 && half >= 0 ? active().round[half] : nullptr;
}

const char* kernel_isa() { return active().isa; }

bool select_isa(const char* name) {
  for (const Candidate& c : kCandidates) {
    if (std::strcmp(c.kernels->isa, name) == 0 && c.available()) {
      selected().store(c.kernels, std::memory_order_release);
      return true;
    }
  }
  return false;
}

}  // namespace mccl
