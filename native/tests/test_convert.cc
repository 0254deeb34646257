// f32 <-> f16 and bf16 on every instruction set against the definition: all 65536 values of each
// 16-bit type, the f32 values at and beside every rounding boundary, and a sample of all f32.
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "reference.h"

namespace {

// Values, the midpoints between neighbours and the floats beside both.
std::vector<float> boundaries(reference::Half h) {
  std::vector<float> values;
  for (uint32_t bits = 0; bits < 0x10000; bits++) {
    const float value = reference::widen(h, static_cast<uint16_t>(bits));
    values.push_back(value);
    const float next = reference::widen(h, static_cast<uint16_t>(bits + 1));
    if (!std::isfinite(value) || !std::isfinite(next)) continue;
    const auto middle = static_cast<float>((static_cast<double>(value) + next) / 2);
    for (float v : {value, middle}) {
      values.push_back(v);
      values.push_back(std::nextafter(v, INFINITY));
      values.push_back(std::nextafter(v, -INFINITY));
    }
  }
  for (float v : {65519.99f, 65520.0f, 65519.0f, 3.4e38f, INFINITY, -INFINITY}) {
    values.push_back(v);
  }
  std::mt19937 random(11);
  for (int i = 0; i < 200000; i++) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  return values;
}

void widen_all(const char* isa, uint32_t dtype) {
  const reference::Half h = reference::half_of(dtype);
  std::vector<uint16_t> halves(0x10000 + 1);
  for (size_t i = 0; i < halves.size(); i++) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(halves.size());
  mccl::find_convert(MCCL_F32, dtype)(wide.data(), halves.data(), halves.size());
  for (size_t i = 0; i < halves.size(); i++) {
    const auto want = std::bit_cast<uint32_t>(reference::widen(h, halves[i]));
    const auto got = std::bit_cast<uint32_t>(wide[i]);
    CHECK_MSG(got == want, "%s widens %s %04zx to %08x, not %08x", isa,
              reference::dtype_name(dtype), i, got, want);
  }
}

void narrow_all(const char* isa, uint32_t dtype, const std::vector<float>& values) {
  const reference::Half h = reference::half_of(dtype);
  std::vector<uint16_t> halves(values.size());
  std::vector<float> rounded(values.size());
  mccl::find_convert(dtype, MCCL_F32)(halves.data(), values.data(), values.size());
  mccl::find_round(MCCL_F32, dtype)(rounded.data(), values.data(), values.size());
  for (size_t i = 0; i < values.size(); i++) {
    const uint16_t want = reference::narrow(h, values[i]);
    CHECK_MSG(halves[i] == want, "%s narrows %08x to %s %04x, not %04x", isa,
              std::bit_cast<uint32_t>(values[i]), reference::dtype_name(dtype), halves[i], want);
    CHECK_MSG(std::bit_cast<uint32_t>(rounded[i]) ==
                  std::bit_cast<uint32_t>(reference::widen(h, want)),
              "%s rounds %08x through %s wrongly", isa, std::bit_cast<uint32_t>(values[i]),
              reference::dtype_name(dtype));
  }
}

void short_lengths(uint32_t dtype) {
  const reference::Half h = reference::half_of(dtype);
  for (size_t n = 0; n <= 67; n++) {
    std::vector<float> values(n + 1, -7.0f);
    std::vector<uint16_t> halves(n + 1, 0x5a5a);
    for (size_t i = 0; i < n; i++) values[i] = 1.0f + static_cast<float>(i) / 64;
    mccl::find_convert(dtype, MCCL_F32)(halves.data(), values.data(), n);
    for (size_t i = 0; i < n; i++) CHECK(halves[i] == reference::narrow(h, values[i]));
    CHECK(halves[n] == 0x5a5a);
    mccl::find_convert(MCCL_F32, dtype)(values.data(), halves.data(), n);
    CHECK(values[n] == -7.0f);
  }
}

}  // namespace

int main() {
  for (uint32_t dtype : {MCCL_F16, MCCL_BF16}) {
    const std::vector<float> values = boundaries(reference::half_of(dtype));
    for (const std::string& isa : reference::available_isas()) {
      CHECK(mccl::select_isa(isa.c_str()));
      widen_all(isa.c_str(), dtype);
      narrow_all(isa.c_str(), dtype, values);
      short_lengths(dtype);
    }
  }
  for (uint32_t dtype = 0; dtype < mccl::kDTypeCount; dtype++) {
    const auto data = reference::inputs(dtype, 19, 3);
    std::vector<char> copy(data.size());
    mccl::find_convert(dtype, dtype)(copy.data(), data.data(), 19);
    CHECK_MSG(copy == data, "copying %s changes it", reference::dtype_name(dtype));
  }
  CHECK(mccl::find_convert(MCCL_F16, MCCL_BF16) == nullptr);
  CHECK(mccl::find_convert(MCCL_F64, MCCL_F32) == nullptr);
  CHECK(mccl::find_convert(99, 99) == nullptr);
  CHECK(mccl::find_round(MCCL_F32, MCCL_F32) == nullptr);
  CHECK(mccl::find_round(MCCL_F16, MCCL_F16) == nullptr);
  return check::result();
}
