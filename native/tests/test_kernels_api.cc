// The kernels' part of mccl.h: right answers go through, senseless requests are refused.
#include <cstdint>
#include <cstring>

#include "check.h"
#include "mccl.h"

int main() {
  float a[3] = {1, 2, 3};
  const float b[3] = {10, 20, 30};
  CHECK(mccl_reduce(MCCL_F32, MCCL_SUM, a, a, b, 3) == MCCL_OK);
  CHECK(a[0] == 11 && a[1] == 22 && a[2] == 33);
  CHECK(mccl_reduce(MCCL_F32, MCCL_BXOR, a, a, b, 3) == MCCL_INVALID);
  CHECK(mccl_reduce(MCCL_F32, MCCL_NO_REDOP, a, a, b, 3) == MCCL_INVALID);
  CHECK(mccl_reduce(77, MCCL_SUM, a, a, b, 3) == MCCL_INVALID);
  CHECK(a[0] == 11);
  CHECK(mccl_reduce_supported(MCCL_C64, MCCL_SUM) == 1);
  CHECK(mccl_reduce_supported(MCCL_C64, MCCL_MAX) == 0);
  CHECK(mccl_reduce_supported(MCCL_BOOL, MCCL_AVG) == 0);
  CHECK(mccl_divide(MCCL_F32, a, a, 3, 11) == MCCL_OK);
  CHECK(a[0] == 1 && a[2] == 3);
  CHECK(mccl_divide(MCCL_F32, a, a, 3, 0) == MCCL_INVALID);
  CHECK(mccl_divide(MCCL_BOOL, a, a, 3, 2) == MCCL_INVALID);
  uint16_t half[3];
  CHECK(mccl_convert(MCCL_F16, half, MCCL_F32, a, 3) == MCCL_OK);
  CHECK(half[0] == 0x3c00 && half[1] == 0x4000);
  CHECK(mccl_convert(MCCL_I32, a, MCCL_F32, b, 3) == MCCL_INVALID);
  CHECK(mccl_crc32c(0, "123456789", 9) == 0xe3069283u);
  const char* isa = mccl_kernel_isa(nullptr);
  CHECK(isa != nullptr);
  CHECK(mccl_kernel_isa("generic") != nullptr);
  CHECK(std::strcmp(mccl_kernel_isa(nullptr), "generic") == 0);
  CHECK(mccl_kernel_isa("abacus") == nullptr);
  CHECK(mccl_kernel_isa(isa) != nullptr);
  CHECK(mccl_abi_version() == MCCL_ABI_VERSION);
  CHECK(std::strlen(mccl_build_info()) > 0);
  return check::result();
}
