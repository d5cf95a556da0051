// SPDX-License-Identifier: Apache-2.0
// Rates of the portable attention kernels on one core, against the GEMM rate of the same BLAS in
// the same run: every repetition times the kernel and then a 2048^3 GEMM, in processor seconds.
// Flops are those of visible pairs only: forward 2 d + 2 dv, backward 6 d + 4 dv per pair.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <fmt/core.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kokkos/register.hpp"
#include "memory/buffer.hpp"
#include "ops/registry.hpp"
#include "perf/tile_masks.hpp"

namespace tessera {
namespace {

constexpr std::int64_t gemm_size = 2048;
constexpr int repetitions = 7;

struct Line {
  std::string name;
  double median = 0, gemm = 0, ratio = 0;  // GFLOP/s, GFLOP/s, median of the ratios of pairs
};
std::vector<Line> table;  // printed after the run

/// Processor seconds of this process: on a quiet core the same as elapsed time, on a shared one
/// free of the time that others took.
double seconds_of(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + x.size() / 2, x.end());
  return x[x.size() / 2];
}

/// Seconds of one square GEMM in the type that the kernel computes in.
class Gemm {
 public:
  explicit Gemm(bool f64) : f64_(f64), bytes_(3 * gemm_size * gemm_size * (f64 ? 8 : 4)) {
    if (f64) {
      std::fill_n(reinterpret_cast<double*>(bytes_.data()), 3 * gemm_size * gemm_size, 0.5);
    } else {
      std::fill_n(reinterpret_cast<float*>(bytes_.data()), 3 * gemm_size * gemm_size, 0.5f);
    }
  }
  double gflops() {
    const int n = gemm_size;
    const double s = seconds_of([&] {
      if (f64_) {
        auto* x = reinterpret_cast<double*>(bytes_.data());
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, x, n, x + n * n, n, 0,
                    x + 2 * n * n, n);
      } else {
        auto* x = reinterpret_cast<float*>(bytes_.data());
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, x, n, x + n * n, n, 0,
                    x + 2 * n * n, n);
      }
    });
    return 2e-9 * std::pow(gemm_size, 3) / s;
  }

 private:
  bool f64_;
  std::vector<char> bytes_;
};

struct Case {
  DType dtype = DType::f32;
  std::int64_t d = 128, dv = 128;
  std::string mask = "causal";
  bool backward = false;
  std::int64_t tokens = 4096, heads = 2;
};

std::vector<ops::Band> mask_of(const Case& c) {
  const std::int64_t n = c.tokens, inf = ops::Band::unbounded;
  if (c.mask == "full") return {{0, n, 0, n, -inf, inf}};
  if (c.mask == "causal") return {{0, n, 0, n, -inf, 0}};
  if (c.mask == "window") return {{0, n, 0, n, -1023, 0}};
  std::vector<ops::Band> bands;  // causal documents of 100, 300, 500, ... tokens
  for (std::int64_t at = 0, length = 100; at < n; at += length, length += 200) {
    const std::int64_t end = std::min(n, at + length);
    bands.push_back({at, end, at, end, -inf, 0});
    if (end == n) break;
  }
  return bands;
}

/// Tensors of one call, filled with a fixed pattern of values in [-1, 1].
class Operands {
 public:
  Operands(const Case& c, const ops::Registry& registry) : registry_(registry) {
    const DType t = c.dtype, a = accumulate_type(t);
    const std::int64_t n = c.tokens, h = c.heads;
    add(t, {n, h, c.d}), add(t, {n, h, c.d}), add(t, {n, h, c.dv}), add(t, {n, h, c.dv});
    for (int i = 0; i < 4; ++i) fill(tensors_[i].ref, i);
    add(a, {n, h, c.dv}), add(a, {h, n, 1}), add(a, {h, n, 1});
    add(a, {n, h, c.d}), add(a, {n, h, c.d}), add(a, {n, h, c.dv});
  }
  ops::Call call(bool backward, const std::vector<ops::Band>& mask, double scale) const {
    ops::Call c;
    c.name = backward ? "attention.backward" : "attention.forward";
    for (const int i :
         backward ? std::vector<int>{0, 1, 2, 3, 5, 6, 7, 8, 9} : std::vector<int>{0, 1, 2, 4, 5}) {
      c.args.push_back(tensors_[i].ref);
    }
    c.attributes.mask = mask;
    c.attributes.scale = scale;
    return c;
  }
  void reset() const {
    registry_.run({"attention.reset", {tensors_[4].ref, tensors_[5].ref}, {}, {}});
  }
  void delta() const {
    registry_.run({"attention.delta", {tensors_[4].ref, tensors_[3].ref, tensors_[6].ref}, {}, {}});
  }

 private:
  void add(DType t, std::array<std::int64_t, 3> shape) {
    tensors_.push_back(make_tensor(budget_, t, shape, "bench"));
  }
  void fill(const TensorRef& t, int seed) const {
    std::vector<float> x(t.count());
    std::uint32_t state = 12345u + static_cast<std::uint32_t>(seed);
    for (float& v : x) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
    }
    registry_.run({"tensor.copy", {dense(x.data(), DType::f32, t.shape), t}, {}, {}});
  }

  const ops::Registry& registry_;
  Budget budget_;
  std::vector<Tensor> tensors_;
};

/// Times `work` (flops each) in pairs with a GEMM and files the medians under `name`.
void time_pairs(benchmark::State& state, const std::string& name, bool f64, double flops,
                const std::function<void()>& before, const std::function<void()>& work) {
  Gemm gemm(f64);
  gemm.gflops();
  std::vector<double> rates, gemms, ratios;
  for (auto _ : state) {
    before();
    const double s = seconds_of(work);
    state.SetIterationTime(s);
    rates.push_back(1e-9 * flops / s);
    gemms.push_back(gemm.gflops());
    ratios.push_back(rates.back() / gemms.back());
  }
  state.counters["gflops"] = median(rates);
  state.counters["gemm_gflops"] = median(gemms);
  state.counters[f64 ? "of_dgemm" : "of_sgemm"] = median(ratios);
  table.push_back({name, median(rates), median(gemms), median(ratios)});
}

void attention(benchmark::State& state, const ops::Registry& registry, const Case& c,
               const std::string& name) {
  const Operands x(c, registry);
  const std::vector<ops::Band> mask = mask_of(c);
  const double scale = 1 / std::sqrt(static_cast<double>(c.d));
  const ops::Call forward = x.call(false, mask, scale), timed = x.call(c.backward, mask, scale);
  // Products over d: 1 forward, 3 backward; over dv: 1 and 2. Each is 2 flops per pair and element.
  const auto per_pair = static_cast<double>(c.backward ? 6 * c.d + 4 * c.dv : 2 * c.d + 2 * c.dv);
  x.reset();
  registry.run(forward);  // backward needs the final LSE; also the warm-up
  x.delta();
  registry.run(timed);
  const std::function<void()> before = [&] {
    if (!c.backward) x.reset();
  };
  time_pairs(state, name, c.dtype == DType::f64,
             per_pair * perf::visible_pairs(mask) * static_cast<double>(c.heads), before,
             [&] { registry.run(timed); });
}

/// Merge of two partial outputs: bytes moved (two reads and one write of o) per second.
void merge(benchmark::State& state, const ops::Registry& registry) {
  Budget budget;
  const std::array<std::int64_t, 3> shape{4096, 8, 128};
  const Tensor o_in = make_tensor(budget, DType::f32, shape, "bench");
  const Tensor o = make_tensor(budget, DType::f32, shape, "bench");
  const Tensor lse_in = make_tensor(budget, DType::f32, {8, 4096, 1}, "bench");
  const Tensor lse = make_tensor(budget, DType::f32, {8, 4096, 1}, "bench");
  const ops::Call call{"attention.merge", {o_in.ref, lse_in.ref, o.ref, lse.ref}, {}, {}};
  for (auto _ : state) registry.run(call);
  state.SetBytesProcessed(state.iterations() * 3 * o.ref.count() * 4);
}

void add(const ops::Registry& registry, const Case& c) {
  const std::string dims = c.d == c.dv ? fmt::format("{}", c.d) : fmt::format("{}-{}", c.d, c.dv);
  const std::string name = fmt::format("{}/{}/d{}/{}/n{}", c.backward ? "backward" : "forward",
                                       name_of(c.dtype), dims, c.mask, c.tokens);
  benchmark::RegisterBenchmark(
      name.c_str(), [&registry, c, name](benchmark::State& s) { attention(s, registry, c, name); })
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond)
      ->Iterations(repetitions);
}

void add_cases(const ops::Registry& registry) {
  for (const bool backward : {false, true}) {
    for (const DType t : {DType::f32, DType::bf16, DType::f64}) {
      add(registry, {t, 128, 128, "causal", backward, 4096, 2});
    }
    for (const char* mask : {"full", "window", "documents"}) {
      add(registry, {DType::f32, 128, 128, mask, backward, 4096, 2});
    }
    for (const DType t : {DType::f32, DType::bf16}) {
      for (const auto& [d, dv] : {std::pair{64, 64}, {96, 96}, {192, 128}, {256, 256}}) {
        add(registry, {t, d, dv, "causal", backward, 4096, 2});
      }
    }
    for (const char* mask : {"full", "causal"}) {
      add(registry, {DType::f32, 128, 128, mask, backward, 512, 16});
    }
  }
  benchmark::RegisterBenchmark("merge/f32/d128", [&registry](benchmark::State& s) {
    merge(s, registry);
  })->Unit(benchmark::kMicrosecond);
}

void print_table() {
  if (table.empty()) return;
  fmt::print(
      "\nmedians of {} pairs, one core, f32 and bf16 against SGEMM {}^3, f64 against DGEMM\n",
      repetitions, gemm_size);
  fmt::print("{:<36}{:>10}{:>10}{:>8}\n", "case", "GFLOP/s", "GEMM", "ratio");
  for (const Line& l : table) {
    fmt::print("{:<36}{:>10.1f}{:>10.1f}{:>8.3f}\n", l.name, l.median, l.gemm, l.ratio);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  Kokkos::ScopeGuard guard(argc, argv);
  tessera::ops::Registry registry;
  tessera::kernels::register_kokkos(registry);
  tessera::add_cases(registry);
  benchmark::RunSpecifiedBenchmarks();
  tessera::print_table();
  benchmark::Shutdown();
}
