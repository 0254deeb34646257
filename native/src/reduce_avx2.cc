// Kernels for AVX2 with F16C.
#include <immintrin.h>

#define MCCL_KERNELS kernels_avx2
#define MCCL_KERNELS_ISA "avx2"
#define MCCL_VECTOR_BYTES 32
#define MCCL_HALF_X86_256
#include "reduce_kernels.inc"
