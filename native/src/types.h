// Element types as numbers of mccl.h: sizes and accumulation types.
#ifndef MCCL_SRC_TYPES_H
#define MCCL_SRC_TYPES_H

#include <cstddef>
#include <cstdint>

#include "mccl.h"

namespace mccl {

inline constexpr uint32_t kDTypeCount = MCCL_C128 + 1;
inline constexpr uint32_t kRedOpCount = MCCL_PREMUL_SUM + 1;

// Bytes of one element; 0 for an unknown dtype.
constexpr size_t dtype_size(uint32_t dtype) {
  switch (dtype) {
    case MCCL_U8:
    case MCCL_I8:
    case MCCL_BOOL:
      return 1;
    case MCCL_I16:
    case MCCL_F16:
    case MCCL_BF16:
      return 2;
    case MCCL_I32:
    case MCCL_F32:
      return 4;
    case MCCL_I64:
    case MCCL_F64:
    case MCCL_C64:
      return 8;
    case MCCL_C128:
      return 16;
    default:
      return 0;
  }
}

// The dtype partial results are kept in: f32 for f16 and bf16, else the dtype itself.
constexpr uint32_t accumulate_dtype(uint32_t dtype) {
  return dtype == MCCL_F16 || dtype == MCCL_BF16 ? uint32_t{MCCL_F32} : dtype;
}

}  // namespace mccl

#endif  // MCCL_SRC_TYPES_H
