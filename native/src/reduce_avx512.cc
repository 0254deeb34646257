// Kernels for AVX-512 F, BW, DQ and VL.
#include <immintrin.h>

#define MCCL_KERNELS kernels_avx512
#define MCCL_KERNELS_ISA "avx512"
#define MCCL_VECTOR_BYTES 64
#define MCCL_HALF_X86_512
#include "reduce_kernels.inc"
