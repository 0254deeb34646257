// Kernels for any processor: what the compiler makes of 16-byte vectors (SSE2, baseline NEON).
#define MCCL_KERNELS kernels_generic
#define MCCL_KERNELS_ISA "generic"
#define MCCL_VECTOR_BYTES 16
#include "reduce_kernels.inc"
