// SPDX-License-Identifier: Apache-2.0
// Rates of the CUDA operators on one device, timed with CUDA events: medians of 20 runs after 5
// warm-ups, with the fastest and the slowest. Attention flops are those of visible pairs only:
// forward 4 d, backward 10 d per pair and head (attention brief 0). Writes one JSON file.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/register.hpp"
#include "memory/buffer.hpp"
#include "memory/cuda.hpp"

namespace tessera {
namespace {

constexpr int warm_ups = 5, repetitions = 20;
using kernels::cuda::check;

struct Times {
  double median, fastest, slowest;  ///< seconds
};

Times time_of(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin{}, end{};
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  std::vector<double> seconds;
  for (int i = 0; i < warm_ups + repetitions; ++i) {
    check(cudaEventRecord(begin, stream), "an event");
    work();
    check(cudaEventRecord(end, stream), "an event");
    check(cudaEventSynchronize(end), "the timed work");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "an event");
    if (i >= warm_ups) seconds.push_back(1e-3 * ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(seconds.begin(), seconds.end());
  return {(seconds[repetitions / 2 - 1] + seconds[repetitions / 2]) / 2, seconds.front(),
          seconds.back()};
}

std::vector<std::string> results;  // JSON objects

/// amount: flops or bytes of one run; unit: "TFLOP/s" or "TB/s".
void report(const std::string& name, std::int64_t tokens, const std::string& mask, double amount,
            const char* unit, const Times& t) {
  const double rate = 1e-12 * amount / t.median;
  fmt::print("{:<22}{:>8}{:>12}{:>10.1f} {:<8}{:>10.3f} ms  ({:.3f} .. {:.3f})\n", name, tokens,
             mask, rate, unit, 1e3 * t.median, 1e3 * t.fastest, 1e3 * t.slowest);
  std::fflush(stdout);
  results.push_back(
      fmt::format(R"({{"name": "{}", "tokens": {}, "mask": "{}", "rate": {:.3f}, "unit": "{}", )"
                  R"("median_s": {:.9f}, )"
                  R"("min_s": {:.9f}, "max_s": {:.9f}}})",
                  name, tokens, mask, rate, unit, t.median, t.fastest, t.slowest));
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

/// Query ranges from 63 random cuts, each with half of the keys from a random place on and a random
/// type: bit 0 causal, bit 1 inverse causal. torch_flex.py makes the same ones.
std::vector<ops::Band> slices_of(std::int64_t n) {
  std::int64_t state = 1;
  const auto random = [&](std::int64_t below) {
    state = (1103515245 * state + 12345) % (std::int64_t{1} << 31);
    return (state >> 8) % below;
  };
  std::set<std::int64_t> cuts;
  while (cuts.size() < 63) cuts.insert(1 + random(n - 1));
  cuts.insert(n);
  std::vector<ops::Band> bands;
  std::int64_t begin = 0;
  for (const std::int64_t end : cuts) {
    const std::int64_t k0 = random(n / 2 + 1), k1 = k0 + n / 2, type = random(4);
    bands.push_back({begin, end, k0, k1, type & 2 ? k0 - begin : -ops::Band::unbounded,
                     type & 1 ? k1 - end : ops::Band::unbounded});
    begin = end;
  }
  return bands;
}

std::vector<ops::Band> mask_of(const std::string& kind, std::int64_t n) {
  constexpr std::int64_t open = ops::Band::unbounded;
  if (kind == "full") return {{0, n, 0, n, -open, open}};
  if (kind == "causal") return {{0, n, 0, n, -open, 0}};
  if (kind == "window") return {{0, n, 0, n, -4095, 0}};
  if (kind == "slices") return slices_of(n);
  std::vector<ops::Band> bands;  // causal documents of 500, 1500, 2500, ... tokens
  for (std::int64_t at = 0, size = 500; at < n; at += size, size = (size + 1000) % 7000) {
    const std::int64_t end = std::min(at + size, n);
    bands.push_back({at, end, at, end, -open, 0});
  }
  return bands;
}

double visible_pairs(const std::vector<ops::Band>& mask) {
  double pairs = 0;
  for (const ops::Band& b : mask) {
    for (std::int64_t q = b.q0; q < b.q1; ++q) pairs += static_cast<double>(b.keys_of(q).size());
  }
  return pairs;
}

class Bench {
 public:
  /// Attention runs on `backend` only.
  explicit Bench(const std::string& backend) : backend_(backend) {
    kernels::register_cuda(registry_, budget_);
    registry_.pin("attention.forward", backend);
    registry_.pin("attention.backward", backend);
    check(cudaStreamCreate(&stream_), "a stream");
  }
  ~Bench() { cudaStreamDestroy(stream_); }

  void attention(std::int64_t n, std::int64_t heads, std::int64_t key_heads, std::int64_t d,
                 std::int64_t dv, const std::string& mask_kind) {
    const std::vector<ops::Band> mask = mask_of(mask_kind, n);
    const ops::Attributes attributes{mask, 1 / std::sqrt(static_cast<double>(d)), 0};
    const auto storage = [&](std::int64_t h, std::int64_t width) {
      Tensor t = make_tensor(budget_, DType::bf16, {n, h, width}, "bench", Space::cuda);
      randomise(t);
      return t;
    };
    const auto sum = [&](std::array<std::int64_t, 3> shape) {
      return make_tensor(budget_, DType::f32, shape, "bench", Space::cuda);
    };
    const Tensor q = storage(heads, d), k = storage(key_heads, d), v = storage(key_heads, dv),
                 go = storage(heads, dv);
    const Tensor o = sum({n, heads, dv}), lse = sum({heads, n, 1}), delta = sum({heads, n, 1}),
                 dq = sum({n, heads, d}), dk = sum({n, key_heads, d}),
                 dv_ = sum({n, key_heads, dv});
    const ops::Call reset{"attention.reset", {o.ref, lse.ref}, {}, {}, stream_};
    const ops::Call forward{
        "attention.forward", {q.ref, k.ref, v.ref, o.ref, lse.ref}, attributes, {}, stream_};
    const ops::Call make_delta{"attention.delta", {o.ref, go.ref, delta.ref}, {}, {}, stream_};
    const ops::Call backward{
        "attention.backward",
        {q.ref, k.ref, v.ref, go.ref, lse.ref, delta.ref, dq.ref, dk.ref, dv_.ref},
        attributes,
        {},
        stream_};
    const double pairs = visible_pairs(mask) * static_cast<double>(heads);
    const auto width = static_cast<double>(d + dv);
    const std::string dims = d == dv ? fmt::format("d{}", d) : fmt::format("d{}/{}", d, dv);
    const std::string suffix = fmt::format(
        " {}{}{}", dims, heads == key_heads ? "" : fmt::format(" g{}", heads / key_heads),
        backend_ == "cuda" ? "" : " " + backend_);
    registry_.prepare(forward);
    registry_.prepare(backward);
    registry_.run(reset);
    report("forward" + suffix, n, mask_kind, 2 * width * pairs, "TFLOP/s",
           time_of(stream_, [&] { registry_.run(forward); }));
    registry_.run(reset);
    registry_.run(forward);
    registry_.run(make_delta);
    const double flops = (6 * static_cast<double>(d) + 4 * static_cast<double>(dv)) * pairs;
    report("backward" + suffix, n, mask_kind, flops, "TFLOP/s",
           time_of(stream_, [&] { registry_.run(backward); }));
  }

  /// Memory-bound operators on n tokens of 32 heads of 128.
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
      report(fmt::format("{} {}", op, what), n, "-", bytes, "TB/s",
             time_of(stream_, [&] { registry_.run(call); }));
    };
    run("attention.merge", {x.ref, lx.ref, y.ref, ly.ref}, "f32", 12 * each);
    run("attention.delta", {x.ref, b.ref, lx.ref}, "f32 bf16", 6 * each);
    run("tensor.copy", {x.ref, y.ref}, "f32", 8 * each);
    run("tensor.copy", {x.ref, b.ref}, "to bf16", 6 * each);
    run("tensor.add", {x.ref, y.ref}, "f32", 12 * each);
    report("cudaMemcpyAsync f32", n, "-", 8 * each, "TB/s", time_of(stream_, [&] {
             memory::copy(y.buffer.data(), x.buffer.data(), x.buffer.bytes(), stream_);
           }));
  }

 private:
  Budget budget_;  // outlives the registry, whose tables are taken from it
  ops::Registry registry_;
  std::string backend_;
  cudaStream_t stream_{};
};

void write(const std::string& path) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  std::string text = fmt::format(
      "{{\n\"device\": \"{}\", \"cudnn\": \"{}\", \"driver\": {}, \"runtime\": {}, \"warm_ups\": "
      "{}, "
      "\"repetitions\": {},\n\"results\": [\n",
      memory::describe_device(), kernels::cuda::describe_cudnn(), driver, runtime, warm_ups,
      repetitions);
  for (std::size_t i = 0; i < results.size(); ++i) {
    text += results[i] + (i + 1 < results.size() ? ",\n" : "\n");
  }
  text += "]}\n";
  std::FILE* file = std::fopen(path.c_str(), "w");
  const bool ok = file && std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
                  std::fclose(file) == 0;
  if (!ok) throw Error(Exit::io, "could not write " + path);
}

/// Causal and full at all lengths: what torch is measured at too.
void sweep(Bench& bench, bool quick) {
  for (std::int64_t n = 2048; n <= (quick ? 8192 : 65536); n *= 2) {
    for (const char* mask : {"causal", "full"}) bench.attention(n, 32, 32, 128, 128, mask);
  }
}

void run(const std::string& out, bool quick) {
  Bench bench("cuda");
  sweep(bench, quick);
  fmt::print("{}\n", kernels::cuda::describe_cudnn());
  if (kernels::cuda::describe_cudnn().starts_with("cuDNN")) {
    Bench peer("cudnn");
    sweep(peer, quick);
  }
  const std::int64_t n = quick ? 8192 : 16384;
  bench.attention(n, 32, 4, 128, 128, "causal");
  for (const auto& [d, dv] : {std::pair{64, 64}, {96, 96}, {192, 128}, {256, 256}}) {
    bench.attention(n, 32, 32, d, dv, "causal");
  }
  for (const char* mask : {"window", "documents", "slices"}) {
    bench.attention(quick ? 16384 : 65536, 32, 32, 128, 128, mask);
  }
  bench.bandwidth(16384);
  write(out);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const bool quick = argc == 3 && std::string(argv[2]) == "--quick";
  if (argc < 2 || (argc == 3 && !quick) || argc > 3) {
    std::fprintf(stderr, "usage: bench_gpu_tile OUT.json [--quick: up to 8192 tokens]\n");
    return 2;
  }
  if (tessera::memory::device_count() == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  try {
    tessera::run(argv[1], quick);
  } catch (const tessera::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return static_cast<int>(e.code());
  }
  return 0;
}
