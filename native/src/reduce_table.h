// The kernels of one instruction set, as a table the dispatcher indexes.
//
// Each reduce_<isa>.cc is compiled with its own -m flags, so nothing it instantiates may be
// shared with other translation units: the linker keeps one copy of a common inline function,
// and were that the AVX-512 one, every caller would need AVX-512. Hence this header and the
// kernels use plain types only, no inline functions of other headers, and everything but the
// table itself has internal linkage.
#ifndef MCCL_SRC_REDUCE_TABLE_H
#define MCCL_SRC_REDUCE_TABLE_H

#include "reduce.h"

namespace mccl {

// The two 16-bit floats, in the order of the tables below.
enum HalfKind { kHalfF16 = 0, kHalfBF16 = 1, kHalfKinds = 2 };

struct Kernels {
  const char* isa;
  BinaryFn reduce[kDTypeCount][kRedOpCount];
  BinaryFn swapped[kDTypeCount][kRedOpCount];
  // Accumulator f32, incoming f16 or bf16.
  BinaryFn reduce_half[kHalfKinds][kRedOpCount];
  BinaryFn swapped_half[kHalfKinds][kRedOpCount];
  UnaryFn widen[kHalfKinds];
  UnaryFn narrow[kHalfKinds];
  UnaryFn round[kHalfKinds];
  DivideFn divide[kDTypeCount];
  ScaleFn scale[kDTypeCount];
};

extern const Kernels kernels_generic;
#if defined(__x86_64__)
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif

}  // namespace mccl

#endif  // MCCL_SRC_REDUCE_TABLE_H
