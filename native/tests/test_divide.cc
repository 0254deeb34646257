// AVG's division and PREMUL_SUM's scaling against the scalar definition, bit for bit.
#include <cstring>
#include <vector>

#include "check.h"
#include "reference.h"

namespace {

constexpr uint32_t kDivisors[] = {1, 2, 3, 4, 5, 7, 64, 127, 128, 200, 256, 300, 40000, 70000,
                                  3000000000u};
constexpr double kFactors[] = {1, 0, -1, 2, 3, -7, 255, 1000003, -9007199254740992.0};
constexpr double kRealFactors[] = {0.5, 1.0 / 3, -0.1, 1e-30, 1e30};

template <class T>
T divide_integer(T value, uint32_t divisor) {
  return static_cast<T>(static_cast<__int128>(value) / divisor);
}

template <class T>
T scale_integer(T value, double factor) {
  return static_cast<T>(static_cast<__int128>(value) * static_cast<__int128>(factor));
}

// by: divide when true, else scale. One component (complex has two).
template <class T>
void expect_integer(void* out, const void* in, bool divide, double by) {
  const T value = reference::get<T>(in);
  reference::put(out, divide ? divide_integer(value, static_cast<uint32_t>(by))
                             : scale_integer(value, by));
}
template <class F>
F expect_float(F value, bool divide, double by) {
  const F operand = static_cast<F>(by);
  return reference::quiet(static_cast<F>(divide ? value / operand : value * operand));
}

void expect(uint32_t dtype, char* out, const char* in, bool divide, double by) {
  switch (dtype) {
    case MCCL_U8:
      return expect_integer<uint8_t>(out, in, divide, by);
    case MCCL_I8:
      return expect_integer<int8_t>(out, in, divide, by);
    case MCCL_I16:
      return expect_integer<int16_t>(out, in, divide, by);
    case MCCL_I32:
      return expect_integer<int32_t>(out, in, divide, by);
    case MCCL_I64:
      return expect_integer<int64_t>(out, in, divide, by);
    case MCCL_F16:
    case MCCL_BF16: {
      const reference::Half h = reference::half_of(dtype);
      const float value = reference::widen(h, reference::get<uint16_t>(in));
      return reference::put(out, reference::narrow(h, expect_float(value, divide, by)));
    }
    case MCCL_F32:
      return reference::put(out, expect_float(reference::get<float>(in), divide, by));
    case MCCL_F64:
      return reference::put(out, expect_float(reference::get<double>(in), divide, by));
    case MCCL_C64:
      expect(MCCL_F32, out, in, divide, by);
      return expect(MCCL_F32, out + 4, in + 4, divide, by);
    case MCCL_C128:
      expect(MCCL_F64, out, in, divide, by);
      return expect(MCCL_F64, out + 8, in + 8, divide, by);
  }
}

void run(const char* isa, uint32_t dtype, size_t n, bool divide, double by, bool in_place) {
  const size_t size = mccl::dtype_size(dtype);
  const size_t misalign = n % 4;
  const auto data = reference::inputs(dtype, n, 9);
  std::vector<char> source(n * size + misalign);
  std::vector<char> target(n * size + misalign + 8, 0x5a);
  char* dst = target.data() + misalign;
  char* src = in_place ? dst : source.data() + misalign;
  if (n != 0) std::memcpy(src, data.data(), n * size);
  if (divide) {
    mccl::find_divide(dtype)(dst, src, n, static_cast<uint32_t>(by));
  } else {
    mccl::find_scale(dtype)(dst, src, n, by);
  }
  for (size_t i = 0; i < n; i++) {
    char want[16];
    expect(dtype, want, data.data() + i * size, divide, by);
    if (std::memcmp(want, dst + i * size, size) != 0) {
      CHECK_MSG(false, "%s %s %s by %g: element %zu of %zu differs", isa,
                reference::dtype_name(dtype), divide ? "divided" : "scaled", by, i, n);
      return;
    }
  }
  bool guard_intact = true;
  for (size_t i = misalign + n * size; i < target.size(); i++) guard_intact &= target[i] == 0x5a;
  CHECK_MSG(guard_intact, "%s %s wrote beyond %zu elements", isa, reference::dtype_name(dtype), n);
}

bool is_integer(uint32_t dtype) { return dtype <= MCCL_I64; }

void run_dtype(const char* isa, uint32_t dtype) {
  for (size_t n = 0; n <= 67; n++) {
    run(isa, dtype, n, true, 3, n % 2 == 0);
    run(isa, dtype, n, false, -7, n % 2 == 0);
  }
  for (uint32_t divisor : kDivisors) run(isa, dtype, 1000, true, divisor, false);
  for (double factor : kFactors) run(isa, dtype, 1000, false, factor, true);
  if (is_integer(dtype)) return;
  for (double factor : kRealFactors) run(isa, dtype, 1000, false, factor, false);
}

}  // namespace

int main() {
  for (const std::string& isa : reference::available_isas()) {
    CHECK(mccl::select_isa(isa.c_str()));
    for (uint32_t dtype = 0; dtype < mccl::kDTypeCount; dtype++) {
      const bool supported = dtype != MCCL_BOOL;
      CHECK((mccl::find_divide(dtype) != nullptr) == supported);
      CHECK((mccl::find_scale(dtype) != nullptr) == supported);
      CHECK(mccl::scale_factor_ok(dtype, 3.0) == supported);
      CHECK(mccl::scale_factor_ok(dtype, 0.5) == (supported && !is_integer(dtype)));
      CHECK(mccl::scale_factor_ok(dtype, 1e17) == (supported && !is_integer(dtype)));
      if (supported) run_dtype(isa.c_str(), dtype);
    }
  }
  CHECK(mccl::find_divide(99) == nullptr);
  CHECK(mccl::find_scale(99) == nullptr);
  CHECK(!mccl::scale_factor_ok(MCCL_I32, NAN));
  return check::result();
}
