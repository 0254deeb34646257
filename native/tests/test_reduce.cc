// Every dtype, operation and instruction set against the scalar reference, bit for bit: awkward
// lengths, unaligned pointers, dst aliasing either operand, and nothing written beyond the end.
#include <cstring>
#include <vector>

#include "check.h"
#include "reference.h"

namespace {

enum Alias { kSeparate, kOnA, kOnB };

constexpr size_t kMost = 331;
constexpr size_t kGuard = 64;

struct Case {
  const char* isa;
  uint32_t acc, in, redop;
  bool swapped;
};

// One element; in differs from acc only for f32 with a 16-bit float.
void expect(const Case& c, char* out, const char* a, const char* b) {
  char widened[16];
  if (c.acc != c.in) {
    reference::put(widened, reference::widen(reference::half_of(c.in), reference::get<uint16_t>(b)));
    b = widened;
  }
  if (c.swapped) {
    reference::combine(c.acc, c.redop, out, b, a);
  } else {
    reference::combine(c.acc, c.redop, out, a, b);
  }
}

void run(const Case& c, mccl::BinaryFn fn, size_t n, size_t misalign, Alias alias) {
  const size_t out_size = mccl::dtype_size(c.acc);
  const size_t in_size = mccl::dtype_size(c.in);
  const auto a_data = reference::inputs(c.acc, n, 1);
  const auto b_data = reference::inputs(c.in, n, 2);
  std::vector<char> a(n * out_size + misalign), b(n * in_size + misalign);
  std::vector<char> d(n * out_size + misalign + kGuard, 0x5a);
  // An empty vector's data() may be null, which memcpy does not take.
  if (n != 0) std::memcpy(a.data() + misalign, a_data.data(), n * out_size);
  if (n != 0) std::memcpy(b.data() + misalign, b_data.data(), n * in_size);
  char* dst = d.data() + misalign;
  const char* pa = a.data() + misalign;
  const char* pb = b.data() + misalign;
  if (alias == kOnA) {
    if (n != 0) std::memcpy(dst, pa, n * out_size);
    pa = dst;
  } else if (alias == kOnB) {
    if (n != 0) std::memcpy(dst, pb, n * in_size);
    pb = dst;
  }
  fn(dst, pa, pb, n);
  for (size_t i = 0; i < n; i++) {
    char want[16];
    expect(c, want, a_data.data() + i * out_size, b_data.data() + i * in_size);
    if (std::memcmp(want, dst + i * out_size, out_size) != 0) {
      CHECK_MSG(false, "%s %s<-%s %s%s: element %zu of %zu (misalign %zu, alias %d) differs",
                c.isa, reference::dtype_name(c.acc), reference::dtype_name(c.in),
                reference::redop_name(c.redop), c.swapped ? " swapped" : "", i, n, misalign, alias);
      return;
    }
  }
  bool guard_intact = true;
  for (size_t i = misalign + n * out_size; i < d.size(); i++) guard_intact &= d[i] == 0x5a;
  CHECK_MSG(guard_intact, "%s %s %s wrote beyond %zu elements", c.isa,
            reference::dtype_name(c.acc), reference::redop_name(c.redop), n);
}

void run_all(const Case& c) {
  const mccl::BinaryFn fn = c.swapped ? mccl::find_reduce_swapped(c.acc, c.in, c.redop)
                                      : mccl::find_reduce(c.acc, c.in, c.redop);
  const bool wanted = reference::supported(c.acc, c.redop);
  CHECK_MSG((fn != nullptr) == wanted, "%s %s<-%s %s is %s", c.isa, reference::dtype_name(c.acc),
            reference::dtype_name(c.in), reference::redop_name(c.redop),
            wanted ? "missing" : "offered but senseless");
  if (fn == nullptr) return;
  for (Alias alias : {kSeparate, kOnA, kOnB}) {
    if (alias == kOnB && c.acc != c.in) continue;
    for (size_t n = 0; n <= 67; n++) run(c, fn, n, n % 4, alias);
    for (size_t misalign : {0, 1, 3}) run(c, fn, kMost, misalign, alias);
  }
}

}  // namespace

int main() {
  for (const std::string& isa : reference::available_isas()) {
    CHECK(mccl::select_isa(isa.c_str()));
    for (uint32_t redop = 0; redop < mccl::kRedOpCount; redop++) {
      for (bool swapped : {false, true}) {
        for (uint32_t dtype = 0; dtype < mccl::kDTypeCount; dtype++) {
          run_all({isa.c_str(), dtype, dtype, redop, swapped});
        }
        for (uint32_t half : {MCCL_F16, MCCL_BF16}) {
          run_all({isa.c_str(), MCCL_F32, half, redop, swapped});
        }
      }
    }
    std::printf("%s: done\n", isa.c_str());
  }
  CHECK(mccl::find_reduce(MCCL_F32, MCCL_F64, MCCL_SUM) == nullptr);
  CHECK(mccl::find_reduce(MCCL_F16, MCCL_F32, MCCL_SUM) == nullptr);
  CHECK(mccl::find_reduce(MCCL_F64, MCCL_BF16, MCCL_SUM) == nullptr);
  CHECK(mccl::find_reduce(99, 99, MCCL_SUM) == nullptr);
  CHECK(mccl::find_reduce_swapped(MCCL_F32, MCCL_F32, 99) == nullptr);
  return check::result();
}
