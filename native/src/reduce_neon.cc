// Kernels for NEON: as the generic ones on AArch64, with its f16 conversions.
#include <arm_neon.h>

#define MCCL_KERNELS kernels_neon
#define MCCL_KERNELS_ISA "neon"
#define MCCL_VECTOR_BYTES 16
#define MCCL_HALF_NEON
#include "reduce_kernels.inc"
