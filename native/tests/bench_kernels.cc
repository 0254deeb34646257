// Speed of the kernels on pieces that stay in L2 (256 KiB), bytes read and written counted.
//   bench_kernels [piece_bytes]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "reduce.h"

namespace {

// Best of several short batches, in seconds a call.
template <class Fn>
double best_time(Fn fn) {
  double best = 1e9;
  for (int batch = 0; batch < 30; batch++) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; i++) fn();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (took.count() / 20 < best) best = took.count() / 20;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 256 * 1024;
  std::vector<char> a(bytes), b(bytes), d(bytes);
  // A normal number near 1 as every float: subnormal results would measure the processor's assist.
  for (size_t i = 0; i < bytes; i++) a[i] = b[i] = d[i] = static_cast<char>(i % 2 ? 0x3f : 0x80);
  const auto report = [&](const char* isa, const char* what, double moved, double seconds) {
    std::printf("%-8s %-18s %7.1f GB/s\n", isa, what, moved / seconds * 1e-9);
  };
  const double piece = static_cast<double>(bytes);
  report("-", "memcpy", 2 * piece,
         best_time([&] { std::memcpy(d.data(), a.data(), bytes); }));
  uint32_t crc = 0;
  report("-", "crc32c", piece, best_time([&] { crc = mccl::crc32c(crc, a.data(), bytes); }));
  struct Row {
    const char* name;
    uint32_t acc, in, redop;
  };
  const Row rows[] = {{"f32 sum", MCCL_F32, MCCL_F32, MCCL_SUM},
                      {"bf16 sum", MCCL_BF16, MCCL_BF16, MCCL_SUM},
                      {"f16 sum", MCCL_F16, MCCL_F16, MCCL_SUM},
                      {"f32 += bf16", MCCL_F32, MCCL_BF16, MCCL_SUM},
                      {"f32 += f16", MCCL_F32, MCCL_F16, MCCL_SUM},
                      {"f64 sum", MCCL_F64, MCCL_F64, MCCL_SUM},
                      {"f32 max", MCCL_F32, MCCL_F32, MCCL_MAX},
                      {"i32 sum", MCCL_I32, MCCL_I32, MCCL_SUM},
                      {"i64 product", MCCL_I64, MCCL_I64, MCCL_PRODUCT},
                      {"u8 product", MCCL_U8, MCCL_U8, MCCL_PRODUCT}};
  for (const char* isa : {"generic", "avx2", "avx512", "neon"}) {
    if (!mccl::select_isa(isa)) continue;
    for (const Row& row : rows) {
      const size_t n = bytes / mccl::dtype_size(row.acc);
      const mccl::BinaryFn fn = mccl::find_reduce(row.acc, row.in, row.redop);
      const double moved = 2 * piece + static_cast<double>(n * mccl::dtype_size(row.in));
      report(isa, row.name, moved,
             best_time([&] { fn(d.data(), d.data(), b.data(), n); }));
    }
    for (uint32_t dtype : {MCCL_F32, MCCL_BF16, MCCL_I32, MCCL_I64}) {
      const size_t n = bytes / mccl::dtype_size(dtype);
      char name[32];
      std::snprintf(name, sizeof name, "divide by 3, #%u", dtype);
      report(isa, name, 2 * piece,
             best_time([&] { mccl::find_divide(dtype)(d.data(), a.data(), n, 3); }));
    }
    report(isa, "f32 to bf16", 1.5 * piece, best_time([&] {
      mccl::find_convert(MCCL_BF16, MCCL_F32)(d.data(), a.data(), bytes / 4);
    }));
  }
  return crc == 0 ? 1 : 0;  // a use of the value, or the calls could be dropped
}
