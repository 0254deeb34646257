// Plain scalar arithmetic on single elements, written for clarity and sharing nothing with the
// kernels, and the inputs to try it on.
#ifndef MCCL_TESTS_REFERENCE_H
#define MCCL_TESTS_REFERENCE_H

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "reduce.h"

namespace reference {

inline const char* dtype_name(uint32_t dtype) {
  static const char* const names[] = {"u8",  "i8",  "i16",  "i32", "i64", "f16",
                                      "bf16", "f32", "f64", "bool", "c64", "c128"};
  return names[dtype];
}

inline const char* redop_name(uint32_t redop) {
  static const char* const names[] = {"sum", "avg", "product", "min",       "max",
                                      "band", "bor", "bxor",    "premul_sum"};
  return names[redop];
}

inline std::vector<std::string> available_isas() {
  const std::string chosen = mccl::kernel_isa();
  std::vector<std::string> isas;
  for (const char* isa : {"generic", "avx2", "avx512", "neon"}) {
    if (mccl::select_isa(isa)) isas.emplace_back(isa);
  }
  mccl::select_isa(chosen.c_str());
  return isas;
}

template <class T>
T get(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}
template <class T>
void put(void* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

// ---- 16-bit floats by definition (IEEE 754-2019, 3.3 and 4.3.1) ------------------------------

struct Half {
  int mantissa_bits;
  int min_exponent;  // of normal numbers
  int max_exponent;
};
inline constexpr Half kF16{10, -14, 15};
inline constexpr Half kBF16{7, -126, 127};

inline Half half_of(uint32_t dtype) { return dtype == MCCL_F16 ? kF16 : kBF16; }

inline float widen(Half h, uint16_t bits) {
  const int mantissa = bits & ((1 << h.mantissa_bits) - 1);
  const int exponent = (bits & 0x7fff) >> h.mantissa_bits;
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const int special = h.max_exponent - h.min_exponent + 2;
  if (exponent == special && mantissa != 0) {
    // Payload at the top; f16's instruction quiets, bf16 is a prefix of f32 and stays as it is.
    uint32_t nan = 0x7f800000u | static_cast<uint32_t>(mantissa) << (23 - h.mantissa_bits);
    if (h.mantissa_bits == 10) nan |= 0x400000u;
    return std::bit_cast<float>(nan | (static_cast<uint32_t>(bits & 0x8000) << 16));
  }
  if (exponent == special) return sign * std::numeric_limits<float>::infinity();
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << h.mantissa_bits);
  const int scale = (exponent == 0 ? 1 : exponent) - 1 + h.min_exponent - h.mantissa_bits;
  return static_cast<float>(sign * std::ldexp(static_cast<double>(significand), scale));
}

inline uint16_t narrow(Half h, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const int special = h.max_exponent - h.min_exponent + 2;
  const auto infinity = static_cast<uint16_t>(special << h.mantissa_bits);
  if (std::isnan(value)) {
    const uint32_t payload = (bits & 0x7fffff) >> (23 - h.mantissa_bits);
    return static_cast<uint16_t>(sign | infinity | payload | (1u << (h.mantissa_bits - 1)));
  }
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  if (value == 0) return sign;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int exponent = std::max(std::ilogb(magnitude), h.min_exponent);
  const double units = std::nearbyint(std::ldexp(magnitude, h.mantissa_bits - exponent));
  // units of the last place: a carry out of the mantissa moves into the exponent by itself.
  const long base = static_cast<long>(exponent - h.min_exponent) << h.mantissa_bits;
  const long encoded = base + static_cast<long>(units);
  return static_cast<uint16_t>(sign | (encoded > infinity ? infinity : encoded));
}

// ---- reductions ------------------------------------------------------------------------------

template <class F>
F quiet(F value) {
  return std::isnan(value) ? std::numeric_limits<F>::quiet_NaN() : value;
}

template <class F>
F combine_float(uint32_t redop, F a, F b) {
  switch (redop) {
    case MCCL_PRODUCT:
      return quiet(static_cast<F>(a * b));
    case MCCL_MIN:
      return std::isnan(a) ? a : std::isnan(b) ? b : b < a ? b : a;
    case MCCL_MAX:
      return std::isnan(a) ? a : std::isnan(b) ? b : b > a ? b : a;
    default:
      return quiet(static_cast<F>(a + b));
  }
}

template <class T>
T combine_integer(uint32_t redop, T a, T b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  switch (redop) {
    case MCCL_PRODUCT:
      return static_cast<T>(x * y);
    case MCCL_MIN:
      return b < a ? b : a;
    case MCCL_MAX:
      return b > a ? b : a;
    case MCCL_BAND:
      return static_cast<T>(x & y);
    case MCCL_BOR:
      return static_cast<T>(x | y);
    case MCCL_BXOR:
      return static_cast<T>(x ^ y);
    default:
      return static_cast<T>(x + y);
  }
}

inline uint8_t combine_bool(uint32_t redop, bool a, bool b) {
  switch (redop) {
    case MCCL_PRODUCT:
    case MCCL_MIN:
    case MCCL_BAND:
      return a && b;
    case MCCL_BXOR:
      return a != b;
    default:
      return a || b;
  }
}

inline void combine(uint32_t dtype, uint32_t redop, void* out, const void* a, const void* b) {
  auto* o = static_cast<char*>(out);
  auto* x = static_cast<const char*>(a);
  auto* y = static_cast<const char*>(b);
  switch (dtype) {
    case MCCL_U8:
      return put(o, combine_integer(redop, get<uint8_t>(x), get<uint8_t>(y)));
    case MCCL_I8:
      return put(o, combine_integer(redop, get<int8_t>(x), get<int8_t>(y)));
    case MCCL_I16:
      return put(o, combine_integer(redop, get<int16_t>(x), get<int16_t>(y)));
    case MCCL_I32:
      return put(o, combine_integer(redop, get<int32_t>(x), get<int32_t>(y)));
    case MCCL_I64:
      return put(o, combine_integer(redop, get<int64_t>(x), get<int64_t>(y)));
    case MCCL_BOOL:
      return put(o, combine_bool(redop, get<uint8_t>(x) != 0, get<uint8_t>(y) != 0));
    case MCCL_F32:
      return put(o, combine_float(redop, get<float>(x), get<float>(y)));
    case MCCL_F64:
      return put(o, combine_float(redop, get<double>(x), get<double>(y)));
    case MCCL_F16:
    case MCCL_BF16: {
      const Half h = half_of(dtype);
      return put(o, narrow(h, combine_float(redop, widen(h, get<uint16_t>(x)),
                                            widen(h, get<uint16_t>(y)))));
    }
    case MCCL_C64:
      for (int i : {0, 4}) put(o + i, combine_float(redop, get<float>(x + i), get<float>(y + i)));
      return;
    case MCCL_C128:
      for (int i : {0, 8}) put(o + i, combine_float(redop, get<double>(x + i), get<double>(y + i)));
      return;
  }
}

// What the kernels must offer, spelled out.
inline bool supported(uint32_t dtype, uint32_t redop) {
  const bool sum = redop == MCCL_SUM || redop == MCCL_AVG || redop == MCCL_PREMUL_SUM;
  const bool bitwise = redop == MCCL_BAND || redop == MCCL_BOR || redop == MCCL_BXOR;
  switch (dtype) {
    case MCCL_C64:
    case MCCL_C128:
      return sum;
    case MCCL_BOOL:
      return redop != MCCL_AVG && redop != MCCL_PREMUL_SUM;
    case MCCL_F16:
    case MCCL_BF16:
    case MCCL_F32:
    case MCCL_F64:
      return !bitwise;
    default:
      return true;
  }
}

// ---- inputs ----------------------------------------------------------------------------------

// n elements: random bits, every fourth a value where implementations differ (zeros of both
// signs, infinities, NaNs with payloads, subnormals, extremes), a quarter of moderate size.
inline std::vector<char> inputs(uint32_t dtype, size_t n, uint32_t seed) {
  const size_t component = dtype == MCCL_C64 ? 4 : dtype == MCCL_C128 ? 8 : mccl::dtype_size(dtype);
  const size_t values = n * mccl::dtype_size(dtype) / component;
  const bool f32 = dtype == MCCL_F32 || dtype == MCCL_C64;
  const bool f64 = dtype == MCCL_F64 || dtype == MCCL_C128;
  static const uint32_t special32[] = {
      0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f812345,
      0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800000, 0xbf800000,
      0x7fffffff, 0x33000000, 0x33000001, 0x387fe000, 0x477fefff, 0x477ff000};
  static const uint16_t special16[] = {0,      0x8000, 0x7c00, 0xfc00, 0x7e00, 0xfe55, 0x7c01,
                                       0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7f80, 0xff80,
                                       0x7fc0, 0xff85, 0x0080, 0x7f7f, 0x7fff, 0x3c00};
  std::mt19937_64 random(seed);
  std::vector<char> data(values * component);
  for (size_t i = 0; i < values; i++) {
    const uint64_t r = random();
    uint64_t bits = random();
    const uint32_t pick = r % 20;
    if ((r >> 32) % 4 == 0) {
      if (component == 2) bits = special16[pick];
      if (component == 4) bits = special32[pick];
      if (component == 8) {
        bits = f64 && pick % 2 == 0
                   ? static_cast<uint64_t>(special32[pick]) << 32 | (pick % 4 == 0 ? 0 : 1)
                   : static_cast<uint64_t>(int64_t{1} << (pick * 3));
      }
      if (component == 1) bits = pick % 2 == 0 ? 0 : 0x80;
    } else if ((r >> 32) % 4 == 1) {
      const double moderate = static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-58;
      if (f32) bits = std::bit_cast<uint32_t>(static_cast<float>(moderate));
      if (f64) bits = std::bit_cast<uint64_t>(moderate);
      if (dtype == MCCL_F16 || dtype == MCCL_BF16) {
        bits = narrow(half_of(dtype), static_cast<float>(moderate));
      }
    }
    std::memcpy(data.data() + i * component, &bits, component);
  }
  return data;
}

}  // namespace reference

#endif  // MCCL_TESTS_REFERENCE_H
