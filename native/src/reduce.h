// Reduction kernels: what the engine calls. Dispatch is by dtype and operation once a
// step, never once an element, and by instruction set once a process.
//
// Promises, the same for every instruction set (results are equal bit for bit):
//   * dst may be exactly a or b; other overlaps are not allowed. No alignment is needed.
//   * f16 and bf16 are computed in f32 and rounded once, to nearest even.
//   * A NaN made or met by SUM, AVG, PRODUCT, a division or a scaling is the positive
//     quiet NaN without payload: hardware disagrees about which NaN survives an addition.
//   * MIN and MAX give NaN when either operand is one; of two NaNs, or of +0 and -0, the
//     first operand survives.
//   * Integers wrap; bool is logical and yields 0 or 1.
#ifndef MCCL_SRC_REDUCE_H
#define MCCL_SRC_REDUCE_H

#include <cstddef>
#include <cstdint>

#include "types.h"

namespace mccl {

// All counts are in elements.
using BinaryFn = void (*)(void* dst, const void* a, const void* b, size_t n);
using UnaryFn = void (*)(void* dst, const void* src, size_t n);
using DivideFn = void (*)(void* dst, const void* src, size_t n, uint32_t divisor);
using ScaleFn = void (*)(void* dst, const void* src, size_t n, double factor);

// dst = combine(a, b): dst and a of acc_dtype, b of in_dtype, which is acc_dtype, or
// f16/bf16 where acc_dtype is f32. AVG and PREMUL_SUM combine like SUM. nullptr: unsupported.
BinaryFn find_reduce(uint32_t acc_dtype, uint32_t in_dtype, uint32_t redop);
// dst = combine(b, a): the incoming operand first.
BinaryFn find_reduce_swapped(uint32_t acc_dtype, uint32_t in_dtype, uint32_t redop);

// Same dtype: a copy. Otherwise f32 <-> f16 and f32 <-> bf16. nullptr: unsupported.
UnaryFn find_convert(uint32_t dst_dtype, uint32_t src_dtype);

// dst = src / divisor (not zero): floats divide truly (f16/bf16 in f32), integers truncate
// toward zero, complex by component. nullptr: bool and unknown dtypes.
DivideFn find_divide(uint32_t dtype);

// PREMUL_SUM's dst = factor * src: floats (f16/bf16 in f32) and complex by component;
// integers multiply as integers and wrap. nullptr: bool and unknown dtypes.
ScaleFn find_scale(uint32_t dtype);
// Whether find_scale's function may be given this factor: any for floats and complex, a whole
// number within ±2^53 for integers.
bool scale_factor_ok(uint32_t dtype, double factor);

// f32 rounded through f16 or bf16 and back. nullptr: any other pair.
UnaryFn find_round(uint32_t dtype, uint32_t wire_dtype);

// The instruction set in use. select_isa returns false when the name is unknown or this
// processor lacks it. Functions found before keep working; the choice is for later finds.
const char* kernel_isa();
bool select_isa(const char* name);

// CRC-32C (Castagnoli, RFC 3720 appendix B.4); crc is 0 to begin with, or the result so far.
uint32_t crc32c(uint32_t crc, const void* data, size_t n);

}  // namespace mccl

#endif  // MCCL_SRC_REDUCE_H
