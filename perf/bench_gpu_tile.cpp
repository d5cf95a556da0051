// SPDX-License-Identifier: Apache-2.0
// Rates of the CUDA operators on one device, timed with CUDA events: medians of 20 runs after 5
// warm-ups or more (0.15 s), with the fastest and the slowest. Attention flops are those of visible
// pairs only: forward 4 d, backward 10 d per pair and head (attention brief 0). Results are written
// and not merged into others where the operator can (Attributes::fresh). Writes one JSON file.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/register.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/kokkos/runtime.hpp"
#include "memory/buffer.hpp"
#include "memory/cuda.hpp"
#include "perf/tile_masks.hpp"

namespace tessera {
namespace {

constexpr int warm_ups = 5, repetitions = 20;
constexpr double warm_up_s = 0.15;  ///< at least, so that the clocks have settled
constexpr std::array gap_kinds{"documents", "window", "slices"};
using kernels::cuda::check;

struct Times {
  double median, fastest, slowest;  ///< seconds
};

Times time_of(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin{}, end{};
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  std::vector<double> seconds;
  const auto start = std::chrono::steady_clock::now();
  const auto is_warm = [&] {
    return std::chrono::steady_clock::now() - start > std::chrono::duration<double>(warm_up_s);
  };
  for (int i = 0; seconds.size() < repetitions; ++i) {
    check(cudaEventRecord(begin, stream), "an event");
    work();
    check(cudaEventRecord(end, stream), "an event");
    check(cudaEventSynchronize(end), "the timed work");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "an event");
    if (i >= warm_ups && (!seconds.empty() || is_warm())) seconds.push_back(1e-3 * ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(seconds.begin(), seconds.end());
  return {(seconds[repetitions / 2 - 1] + seconds[repetitions / 2]) / 2, seconds.front(),
          seconds.back()};
}

std::vector<std::string> results;  // JSON objects

/// amount: flops or bytes of one run; unit: "TFLOP/s" or "TB/s"; more: further JSON members,
/// each behind a comma.
void report(const std::string& name, std::int64_t tokens, const std::string& mask, double amount,
            const char* unit, const Times& t, const std::string& more = "") {
  const double rate = 1e-12 * amount / t.median;
  fmt::print("{:<22}{:>8}{:>12}{:>10.1f} {:<8}{:>10.3f} ms  ({:.3f} .. {:.3f})\n", name, tokens,
             mask, rate, unit, 1e3 * t.median, 1e3 * t.fastest, 1e3 * t.slowest);
  std::fflush(stdout);
  results.push_back(
      fmt::format(R"({{"name": "{}", "tokens": {}, "mask": "{}", "rate": {:.3f}, "unit": "{}", )"
                  R"("median_s": {:.9f}, )"
                  R"("min_s": {:.9f}, "max_s": {:.9f}{}}})",
                  name, tokens, mask, rate, unit, t.median, t.fastest, t.slowest, more));
}

/// Normal numbers, the same block of them over and over.
void randomise(const Tensor& t) {
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> block(1 << 20);
  for (auto& x : block) x = BFloat16(normal(rng)).bits;
  const auto size = static_cast<std::int64_t>(2 * block.size());
  for (std::int64_t at = 0; at < t.buffer.bytes(); at += size) {
    memory::copy(static_cast<char*>(t.buffer.data()) + at, block.data(),
                 std::min(size, t.buffer.bytes() - at));
  }
  memory::synchronize();
}

struct Backward {
  std::string backend;
  Times times;
  double before_s;  ///< Delta, and clearing what this backend only adds to
};

/// Times of one shape and mask.
struct Passes {
  Times forward;
  std::vector<Backward> backward;
  double fraction;  ///< of all pairs that is visible
};

/// Operands of the attention operators, all heads of a tile of n tokens.
struct Operands {
  Tensor q, k, v, grad, o, lse, delta, dq, dk, dv;
};

struct Sizes {
  std::int64_t n, heads, key_heads, d, dv;
};

Operands operands(Budget& budget, const Sizes& s) {
  const auto storage = [&](std::int64_t h, std::int64_t width) {
    Tensor t = make_tensor(budget, DType::bf16, {s.n, h, width}, "bench", Space::cuda);
    randomise(t);
    return t;
  };
  const auto sum = [&](std::array<std::int64_t, 3> shape) {
    return make_tensor(budget, DType::f32, shape, "bench", Space::cuda);
  };
  return {storage(s.heads, s.d),        storage(s.key_heads, s.d), storage(s.key_heads, s.dv),
          storage(s.heads, s.dv),       sum({s.n, s.heads, s.dv}), sum({s.heads, s.n, 1}),
          sum({s.heads, s.n, 1}),       sum({s.n, s.heads, s.d}),  sum({s.n, s.key_heads, s.d}),
          sum({s.n, s.key_heads, s.dv})};
}

class Bench {
 public:
  /// What `backend` has runs on it only; backward also on those that are named after it.
  explicit Bench(const std::string& backend) : backend_(backend) {
    kernels::register_cuda(registry_, budget_);
    kernels::register_kokkos(registry_);
    for (const ops::Implementation& i : registry_.list()) {
      if (i.backend == backend) registry_.pin(i.op, backend);
      const bool plain = i.backend == backend + "-plain";  // not meant to be fast
      const bool listed = std::ranges::count(backward_, i.backend) > 0;
      if (i.op == "attention.backward" && i.backend.starts_with(backend) && !plain && !listed)
        backward_.push_back(i.backend);
    }
    check(cudaStreamCreate(&stream_), "a stream");
  }
  ~Bench() { cudaStreamDestroy(stream_); }

  Passes times(const Sizes& s, const std::vector<ops::Band>& mask) {
    const Operands t = operands(budget_, s);
    const ops::Attributes attributes{mask, 1 / std::sqrt(static_cast<double>(s.d)), 0};
    ops::Call forward{"attention.forward",
                      {t.q.ref, t.k.ref, t.v.ref, t.o.ref, t.lse.ref},
                      attributes,
                      {},
                      stream_};
    forward.attributes.fresh = ops::fresh_bits(registry_.choose(forward), forward);
    registry_.prepare(forward);
    registry_.run({"attention.reset", {t.o.ref, t.lse.ref}, {}, {}, stream_});
    Passes passes{time_of(stream_, [&] { registry_.run(forward); }), {}, 0};
    passes.fraction = perf::visible_pairs(mask) / static_cast<double>(s.n * s.n);
    const ops::Call backward{"attention.backward",
                             {t.q.ref, t.k.ref, t.v.ref, t.grad.ref, t.lse.ref, t.delta.ref,
                              t.dq.ref, t.dk.ref, t.dv.ref},
                             attributes,
                             {},
                             stream_};
    for (const std::string& backend : backward_) {
      registry_.pin("attention.backward", backend);
      if (!registry_.candidates(backward).empty())
        passes.backward.push_back(time_backward(backend, t, backward));
    }
    return passes;
  }

  void attention(const Sizes& s, const std::string& mask_kind) {
    report_attention(s, mask_kind, times(s, perf::mask_of(mask_kind, s.n)));
  }

  /// Masks with gaps, each beside the full one measured just before and beside what a launch costs:
  /// the same operators on 128 tokens of one head.
  void gaps(std::int64_t n) {
    const Sizes s{n, 32, 32, 128, 128};
    const Passes floor = times({128, 1, 1, 128, 128}, perf::mask_of("full", 128));
    const Passes full = times(s, perf::mask_of("full", n));
    for (const char* kind : gap_kinds) {
      report_attention(s, kind, times(s, perf::mask_of(kind, n)), &full, &floor);
    }
  }

  bool offers(const std::string& backend) const {
    return std::ranges::any_of(registry_.list(), [&](auto& i) { return i.backend == backend; });
  }

  /// Memory-bound operators where the launch counts and where the memory does.
  void bandwidths() {
    for (const std::int64_t n : {1024, 16384}) bandwidth(n);
  }

 private:
  /// On n tokens of 32 heads of 128.
  void bandwidth(std::int64_t n) {
    const auto make = [&](DType t, std::array<std::int64_t, 3> shape) {
      return make_tensor(budget_, t, shape, "bench", Space::cuda);
    };
    const std::array<std::int64_t, 3> shape{n, 32, 128}, stats{32, n, 1};
    const Tensor x = make(DType::f32, shape), y = make(DType::f32, shape);
    const Tensor b = make(DType::bf16, shape), lx = make(DType::f32, stats);
    const Tensor ly = make(DType::f32, stats);
    randomise(b);
    const auto each = static_cast<double>(x.ref.count());
    const auto run = [&](const char* op, std::vector<TensorRef> args, const char* what,
                         double bytes) {
      const ops::Call call{op, std::move(args), {}, {}, stream_};
      report(fmt::format("{} {}{}", op, what, tag_of(backend_)), n, "-", bytes, "TB/s",
             time_of(stream_, [&] { registry_.run(call); }));
    };
    run("attention.merge", {x.ref, lx.ref, y.ref, ly.ref}, "f32", 12 * each);
    run("attention.delta", {x.ref, b.ref, lx.ref}, "f32 bf16", 6 * each);
    run("tensor.copy", {x.ref, y.ref}, "f32", 8 * each);
    run("tensor.copy", {x.ref, b.ref}, "to bf16", 6 * each);
    run("tensor.copy", {b.ref, x.ref}, "to f32", 6 * each);
    run("tensor.add", {x.ref, y.ref}, "f32", 12 * each);
    run("tensor.sum", {x.ref, y.ref, b.ref}, "2 to bf16", 10 * each);
    const Range all{0, n}, first{0, 16}, second{16, 32};
    run("tensor.copy",
        {x.ref.slice(all, first), b.ref.slice(all, second), y.ref.slice(all, second),
         b.ref.slice(all, first)},
        "halves", 6 * each);
    report("cudaMemcpyAsync f32", n, "-", 8 * each, "TB/s", time_of(stream_, [&] {
             memory::copy(y.buffer.data(), x.buffer.data(), x.buffer.bytes(), stream_);
           }));
    run("tensor.zero", {x.ref, y.ref}, "f32", 8 * each);  // at the end: zeros take less power
  }

  Backward time_backward(const std::string& backend, const Operands& t, ops::Call backward) {
    backward.attributes.fresh = ops::fresh_bits(registry_.choose(backward), backward);
    registry_.prepare(backward);
    const auto before = [&] {
      registry_.run({"attention.delta", {t.o.ref, t.grad.ref, t.delta.ref}, {}, {}, stream_});
      for (std::size_t i = 6; i < 9; ++i) {
        if (!(backward.attributes.fresh >> i & 1))
          registry_.run({"tensor.zero", {backward.args[i]}, {}, {}, stream_});
      }
    };
    const double before_s = time_of(stream_, before).median;
    return {backend, time_of(stream_, [&] { registry_.run(backward); }), before_s};
  }

  /// full, floor: what a mask with gaps is compared with.
  void report_attention(const Sizes& s, const std::string& mask_kind, const Passes& t,
                        const Passes* full = nullptr, const Passes* floor = nullptr) {
    const double pairs = t.fraction * static_cast<double>(s.n * s.n * s.heads);
    const std::string dims =
        s.d == s.dv ? fmt::format("d{}", s.d) : fmt::format("d{}/{}", s.d, s.dv);
    const std::string group =
        s.heads == s.key_heads ? "" : fmt::format(" g{}", s.heads / s.key_heads);
    const auto one = [&](const std::string& pass, const std::string& backend, std::int64_t flops,
                         const Times& x, const Times* whole, const Times* least, double before_s) {
      std::string more = fmt::format(R"(, "fraction": {:.9f})", t.fraction);
      if (before_s > 0) more += fmt::format(R"(, "before_s": {:.9f})", before_s);
      if (whole) {
        more +=
            fmt::format(R"(, "full_s": {:.9f}, "floor_s": {:.9f})", whole->median, least->median);
      }
      report(fmt::format("{} {}{}{}", pass, dims, group, tag_of(backend)), s.n, mask_kind,
             static_cast<double>(flops) * pairs, "TFLOP/s", x, more);
      if (whole) {
        fmt::print(
            "  {:.2f} % visible: (time - {:.1f} us launch floor) / (fraction x {:.3f} ms "
            "under the full mask) = {:.3f}\n",
            100 * t.fraction, 1e6 * least->median, 1e3 * whole->median,
            (x.median - least->median) / (t.fraction * whole->median));
      }
    };
    one("forward", backend_, 2 * (s.d + s.dv), t.forward, full ? &full->forward : nullptr,
        floor ? &floor->forward : nullptr, 0);
    for (std::size_t i = 0; i < t.backward.size(); ++i) {
      const Backward& b = t.backward[i];
      one("backward", b.backend, 6 * s.d + 4 * s.dv, b.times,
          full ? &full->backward[i].times : nullptr, floor ? &floor->backward[i].times : nullptr,
          b.before_s);
    }
  }

  /// "cuda" goes without saying: "cudnn" is " cudnn", "cuda-one-pass" " one-pass".
  static std::string tag_of(const std::string& backend) {
    if (backend == "cuda") return "";
    return " " + (backend.starts_with("cuda-") ? backend.substr(5) : backend);
  }

  Budget budget_;  // outlives the registry, whose tables are taken from it
  ops::Registry registry_;
  std::string backend_;
  std::vector<std::string> backward_;
  cudaStream_t stream_{};
};

/// [{"name", "tokens", "bands": [[q0, q1, k0, k1, lo, hi], ...]}, ...]; no bound is null.
std::string json_of_masks(std::int64_t n) {
  const auto bound = [](std::int64_t x) {
    return std::abs(x) >= ops::Band::unbounded ? std::string("null") : std::to_string(x);
  };
  std::string text;
  for (const char* kind : gap_kinds) {
    std::string bands;
    for (const ops::Band& b : perf::mask_of(kind, n)) {
      bands += fmt::format("{}[{}, {}, {}, {}, {}, {}]", bands.empty() ? "" : ", ", b.q0, b.q1,
                           b.k0, b.k1, bound(b.lo), bound(b.hi));
    }
    text += fmt::format("{}\n{{\"name\": \"{}\", \"tokens\": {}, \"bands\": [{}]}}",
                        text.empty() ? "" : ",", kind, n, bands);
  }
  return "[" + text + "]";
}

void write(const std::string& path, const std::string& masks) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::string text = fmt::format(R"({{"device": "{}", "cudnn": "{}", "driver": {}, "runtime": {}, )"
                                 R"("warm_ups": {}, "warm_up_s": {}, )"
                                 R"("repetitions": {},)"
                                 "\n\"masks\": {},\n\"results\": [\n",
                                 memory::describe_device(), kernels::cuda::describe_cudnn(), driver,
                                 runtime, warm_ups, warm_up_s, repetitions, masks);
  for (std::size_t i = 0; i < results.size(); ++i) {
    text += results[i] + (i + 1 < results.size() ? ",\n" : "\n");
  }
  text += "]}\n";
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool ok = file && std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                  std::fclose(file) == 0;
  if (!ok) throw Error(Exit::io, "could not write " + path);
}

enum class Extent { all, quick, masks };

/// Causal and full at all lengths: what torch is measured at too.
void sweep(Bench& bench, Extent extent) {
  for (std::int64_t n = 2048; n <= (extent == Extent::quick ? 8192 : 65536); n *= 2) {
    for (const char* mask : {"causal", "full"}) bench.attention({n, 32, 32, 128, 128}, mask);
  }
}

void shapes(Bench& bench, Extent extent) {
  sweep(bench, extent);
  fmt::print("{}\n", kernels::cuda::describe_cudnn());
  if (kernels::cuda::describe_cudnn().starts_with("cuDNN")) {
    Bench peer("cudnn");
    sweep(peer, extent);
  }
  const std::int64_t n = extent == Extent::quick ? 8192 : 16384;
  bench.attention({n, 32, 4, 128, 128}, "causal");
  for (const auto& [d, dv] : {std::pair{64, 64}, {96, 96}, {192, 128}, {256, 256}}) {
    bench.attention({n, 32, 32, d, dv}, "causal");
  }
}

/// The portable kernels, where Kokkos has CUDA: plain loops, so short lengths only.
void portable(const std::string& backend) {
  Bench bench(backend);
  for (const std::int64_t n : {2048, 4096}) {
    for (const char* mask : {"causal", "full"}) bench.attention({n, 32, 32, 128, 128}, mask);
  }
  bench.bandwidths();
}

void run(const std::string& out, Extent extent) {
  Bench bench("cuda");
  if (extent != Extent::masks) shapes(bench, extent);
  const std::int64_t n = extent == Extent::quick ? 16384 : 65536;
  bench.gaps(n);
  if (extent != Extent::masks) bench.bandwidths();
  if (extent != Extent::masks && bench.offers("kokkos-cuda")) portable("kokkos-cuda");
  write(out, json_of_masks(n));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using tessera::Extent;
  const std::string option = argc == 3 ? argv[2] : "";
  const Extent extent = option == "--quick"   ? Extent::quick
                        : option == "--masks" ? Extent::masks
                                              : Extent::all;
  if (argc < 2 || argc > 3 || (argc == 3 && extent == Extent::all)) {
    std::fprintf(stderr,
                 "usage: bench_gpu_tile OUT.json [--quick: up to 8192 tokens | "
                 "--masks: masks with gaps only]\n");
    return 2;
  }
  if (tessera::memory::device_count() == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  try {
    const tessera::kernels::KokkosRuntime kokkos;
    tessera::run(argv[1], extent);
  } catch (const tessera::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return static_cast<int>(e.code());
  }
  return 0;
}
