// Instruction sets agree bit for bit on random bits, and an element's result does not depend on
// where in a piece it stands: peers run different processors and cut pieces differently.
#include <cstring>
#include <vector>

#include "check.h"
#include "reference.h"

namespace {

constexpr size_t kCount = 4099;

std::vector<char> reduced(const std::string& isa, uint32_t acc, uint32_t in, uint32_t redop,
                          bool swapped, size_t cut) {
  mccl::select_isa(isa.c_str());
  const mccl::BinaryFn fn = swapped ? mccl::find_reduce_swapped(acc, in, redop)
                                    : mccl::find_reduce(acc, in, redop);
  const auto a = reference::inputs(acc, kCount, 21);
  const auto b = reference::inputs(in, kCount, 22);
  std::vector<char> d(a.size());
  const size_t size = mccl::dtype_size(acc);
  for (size_t start = 0; start < kCount; start += cut) {
    fn(d.data() + start * size, a.data() + start * size, b.data() + start * mccl::dtype_size(in),
       std::min(cut, kCount - start));
  }
  return d;
}

void compare(uint32_t acc, uint32_t in, uint32_t redop, bool swapped) {
  const auto want = reduced("generic", acc, in, redop, swapped, kCount);
  for (const std::string& isa : reference::available_isas()) {
    for (size_t cut : {kCount, size_t{1}, size_t{5}, size_t{37}}) {
      CHECK_MSG(reduced(isa, acc, in, redop, swapped, cut) == want,
                "%s differs from generic: %s<-%s %s in pieces of %zu", isa.c_str(),
                reference::dtype_name(acc), reference::dtype_name(in),
                reference::redop_name(redop), cut);
    }
  }
}

}  // namespace

int main() {
  for (uint32_t redop = 0; redop < mccl::kRedOpCount; redop++) {
    for (bool swapped : {false, true}) {
      for (uint32_t dtype = 0; dtype < mccl::kDTypeCount; dtype++) {
        if (reference::supported(dtype, redop)) compare(dtype, dtype, redop, swapped);
      }
      for (uint32_t half : {MCCL_F16, MCCL_BF16}) {
        if (reference::supported(MCCL_F32, redop)) compare(MCCL_F32, half, redop, swapped);
      }
    }
  }
  const auto isas = reference::available_isas();
#if defined(__aarch64__)
  CHECK(isas.size() == 2);
#else
  CHECK(!isas.empty() && isas.front() == "generic");
#endif
  const std::string before = mccl::kernel_isa();
  CHECK(!mccl::select_isa("abacus"));
  CHECK(before == mccl::kernel_isa());
  return check::result();
}
