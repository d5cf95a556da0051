// SPDX-License-Identifier: Apache-2.0
// What splitting attention over 4 ranks costs one GPU: the compute steps of all 4 plans of a scheme
// run one rank after the other, without transfers, each as one graph, beside one call of the
// operator for the whole problem. Causal, zigzag, 32 heads of 128, bf16. Medians of 20 after 3
// warm-ups; flops are those of visible pairs. Exit code 1 when a limit is not kept.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "attention/scheme.hpp"
#include "drivers/common/machine_file.hpp"
#include "exec/executor.hpp"
#include "io/file_system.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/register.hpp"
#include "memory/cuda.hpp"

namespace tessera {
namespace {

using attention::Pass;
using attention::Problem;
using attention::Scheme;
using attention::SchemeKind;

constexpr int ranks = 4, warm_ups = 3, repetitions = 20;
constexpr double launch_limit = 0.02;  // host time over device time

/// Least rate over that of one call for the whole problem: issue 4, B.
double limit_of(std::int64_t tokens_per_rank) { return tokens_per_rank >= 8192 ? 0.93 : 0.80; }

Problem problem_of(std::int64_t tokens) {
  Problem p;
  p.sequence = p.key_sequence = tokens;
  p.query_heads = p.kv_heads = 32;
  p.head_dim = p.value_dim = 128;
  p.dtype = DType::bf16;
  p.mask = attention::causal_mask({p.batch, p.sequence, p.key_sequence}, false);
  return p;
}

struct Spread {
  double median = 0, min = 0, max = 0;
};

Spread spread_of(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t h = v.size() / 2;
  return {v.size() % 2 ? v[h] : 0.5 * (v[h - 1] + v[h]), v.front(), v.back()};
}

/// Device tensors full of normal numbers: on zeros a GPU draws less power and runs faster.
class Tensors {
 public:
  Tensors() {
    std::mt19937_64 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> wide(block);
    std::vector<std::uint16_t> narrow(block);
    for (std::size_t i = 0; i < wide.size(); ++i) {
      wide[i] = normal(rng);
      narrow[i] = BFloat16(wide[i]).bits;
    }
    memory::copy(wide_.data(), wide.data(), wide_.bytes());
    memory::copy(narrow_.data(), narrow.data(), narrow_.bytes());
    memory::synchronize();
  }

  Tensor make(DType dtype, std::array<std::int64_t, 3> shape, const std::string& name) {
    Tensor t = make_tensor(budget, dtype, shape, name, Space::cuda);
    const Buffer& from = dtype == DType::bf16 ? narrow_ : wide_;
    for (std::int64_t at = 0; at < t.buffer.bytes(); at += from.bytes())
      memory::copy(static_cast<char*>(t.buffer.data()) + at, from.data(),
                   std::min(from.bytes(), t.buffer.bytes() - at));
    memory::synchronize();
    return t;
  }

  Budget budget;

 private:
  static constexpr std::int64_t block = 1 << 20;  // numbers
  Buffer wide_{budget, 4 * block, "normal numbers", Space::cuda};
  Buffer narrow_{budget, 2 * block, "normal numbers", Space::cuda};
};

/// What every measurement needs; one stream for all calls, as operators keep what they need by it.
struct Bench {
  explicit Bench(plan::Machine m) : machine(std::move(m)) {
    kernels::register_cuda(registry, tensors.budget);
    kernels::register_cuda(cudnn, tensors.budget);
    has_cudnn = kernels::cuda::describe_cudnn().starts_with("cuDNN");
    if (has_cudnn)
      for (const char* op : {"attention.forward", "attention.backward"}) cudnn.pin(op, "cudnn");
    device.compute.emplace_back();
  }
  plan::Machine machine;
  Tensors tensors;
  ops::Registry registry, cudnn;
  bool has_cudnn = false;
  exec::DeviceRun device;
  parallel::Communicator self{MPI_COMM_SELF, "bench"};
};

/// Seconds of one call of the operator for the whole problem.
Spread time_single(Bench& bench, const ops::Registry& registry, const Problem& p, Pass pass) {
  const std::int64_t n = p.sequence;
  const auto make = [&](DType t, std::array<std::int64_t, 3> shape) {
    return bench.tensors.make(t, shape, "whole problem");
  };
  const std::array<std::int64_t, 3> rows{n, p.query_heads, p.head_dim}, stats{p.query_heads, n, 1};
  std::vector<Tensor> tensors;
  const int stored = pass == Pass::forward ? 3 : 4;  // q k v, and do
  for (int i = 0; i < stored; ++i) tensors.push_back(make(DType::bf16, rows));
  if (pass == Pass::backward)
    for (int i = 0; i < 2; ++i) tensors.push_back(make(DType::f32, stats));
  for (int i = 0; i < (pass == Pass::forward ? 1 : 3); ++i)
    tensors.push_back(make(DType::f32, rows));
  if (pass == Pass::forward) tensors.push_back(make(DType::f32, stats));
  const std::vector<ops::Band> mask = p.mask.bands();
  ops::Call call{pass == Pass::forward ? "attention.forward" : "attention.backward",
                 {},
                 {mask, p.scale_factor(), 0},
                 {},
                 bench.device.compute.front().handle()};
  for (const Tensor& t : tensors) call.args.push_back(t.ref);
  registry.prepare(call);
  const memory::Event begin(true), end(true);
  std::vector<double> seconds;
  for (int i = 0; i < warm_ups + repetitions; ++i) {
    begin.record(call.stream);
    registry.run(call);
    end.record(call.stream);
    end.wait();
    if (i >= warm_ups) seconds.push_back(memory::Event::seconds_between(begin, end));
  }
  return spread_of(seconds);
}

/// The plan of one rank. All its buffers are bound, scratch too, since what the other ranks would
/// have sent must be numbers and not zeros.
class Rank {
 public:
  Rank(Bench& bench, const attention::Context& context, const plan::Plan& plan, int rank)
      : plan_(plan) {
    for (plan::Buffer& b : plan_.buffers) {
      b.role = plan::Role::saved;
      tensors_.push_back(bench.tensors.make(b.dtype, b.shape, b.name));
    }
    exec::Binding binding;
    binding.external = [this](const plan::Buffer& b) {
      return tensors_[static_cast<std::size_t>(&b - plan_.buffers.data())].ref;
    };
    binding.attributes = [&context, rank, this](const plan::Step& step) {
      ops::Attributes out;
      if (step.index.kind != plan::Index::Kind::tile) return out;
      auto [at, inserted] = bands_.try_emplace(step.index);
      if (inserted) {
        const auto [q, k] = attention::tile_rows(context, rank, step.index);
        at->second = context.problem.mask.cut(q, k);
      }
      out.mask = at->second;
      out.scale = context.problem.scale_factor();
      return out;
    };
    executor_ = std::make_unique<exec::Executor>(plan_, binding, bench.registry, bench.self,
                                                 bench.tensors.budget, nullptr, &bench.device);
  }
  exec::Measured run() { return executor_->run(); }

 private:
  plan::Plan plan_;
  std::vector<Tensor> tensors_;
  std::map<plan::Index, std::vector<attention::Band>> bands_;
  std::unique_ptr<exec::Executor> executor_;
};

struct PassTime {
  Spread seconds;       ///< all ranks one after the other
  double launch_share;  ///< median of host time over device time
};

PassTime time_pass(Bench& bench, const Problem& p, const Scheme& scheme, Pass pass) {
  const attention::Context context(p, scheme, ranks, pass);
  const plan::Program program = attention::make_program(p, scheme, ranks, pass, bench.machine);
  std::vector<std::unique_ptr<Rank>> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(
        std::make_unique<Rank>(bench, context, program.plans[static_cast<std::size_t>(r)], r));
  std::vector<double> seconds, shares;
  for (int i = 0; i < warm_ups + repetitions; ++i) {
    double device = 0, host = 0;
    for (const auto& rank : all) {
      const exec::Measured run = rank->run();
      device += run.seconds;
      host += run.launch_s;
    }
    if (i < warm_ups) continue;
    seconds.push_back(device);
    shares.push_back(host / device);
  }
  return {spread_of(seconds), spread_of(shares).median};
}

struct Single {
  double seconds = 0, cudnn_seconds = 0;  ///< 0: there is no cuDNN
};

/// One line of the table and one JSON object; false when a limit is not kept.
bool report(nlohmann::ordered_json& results, const Problem& p, const Scheme& scheme, Pass pass,
            const PassTime& t, const Single& single) {
  const std::int64_t tokens = p.sequence / ranks;
  const double flops = p.flops(pass, p.mask.area(), p.query_heads), median = t.seconds.median;
  const double of_single = single.seconds / median, limit = limit_of(tokens);
  const bool fast = of_single >= limit, light = t.launch_share <= launch_limit;
  nlohmann::ordered_json j{{"scheme", scheme.text()},
                           {"pass", attention::name_of(pass)},
                           {"tokens_per_rank", tokens},
                           {"rate", 1e-12 * flops / median},
                           {"median_s", median},
                           {"min_s", t.seconds.min},
                           {"max_s", t.seconds.max},
                           {"single_rate", 1e-12 * flops / single.seconds},
                           {"of_single", of_single},
                           {"limit", limit},
                           {"launch_share", t.launch_share},
                           {"launch_limit", launch_limit},
                           {"kept", fast && light}};
  std::string cudnn = "-";
  if (single.cudnn_seconds > 0) {
    j["cudnn_rate"] = 1e-12 * flops / single.cudnn_seconds;
    j["of_cudnn"] = single.cudnn_seconds / median;
    cudnn = fmt::format("{:.3f}", single.cudnn_seconds / median);
  }
  fmt::print("{:<12}{:<10}{:>8}{:>10.3f} ms{:>9.1f}{:>9.1f}{:>9.3f}{:>9}{:>9.2f}%  {}{}\n",
             scheme.text(), attention::name_of(pass), tokens, 1e3 * median, 1e-12 * flops / median,
             1e-12 * flops / single.seconds, of_single, cudnn, 100 * t.launch_share,
             fast ? "" : fmt::format("BELOW {:.2f} ", limit),
             light ? "" : fmt::format("LAUNCH ABOVE {:.0f} %", 100 * launch_limit));
  std::fflush(stdout);
  results.push_back(std::move(j));
  return fast && light;
}

int run(const std::string& out, const std::string& machine_file, bool quick) {
  Bench bench(drivers::read_machine(machine_file));
  const std::vector<Scheme> schemes{{.kind = SchemeKind::ring},
                                    {.kind = SchemeKind::mesh, .a = 2, .b = 2},
                                    {.kind = SchemeKind::ulysses},
                                    {.kind = SchemeKind::all_gather}};
  nlohmann::ordered_json j{{"device", memory::describe_device()},
                           {"cudnn", kernels::cuda::describe_cudnn()},
                           {"machine", bench.machine.name},
                           {"ranks", ranks},
                           {"warm_ups", warm_ups},
                           {"repetitions", repetitions}};
  auto& results = j["results"] = nlohmann::ordered_json::array();
  fmt::print("{:<12}{:<10}{:>8}{:>13}{:>9}{:>9}{:>9}{:>9}{:>10}\n", "scheme", "pass", "per rank",
             "4 ranks", "TFLOP/s", "1 call", "of it", "of cuDNN", "launch");
  int kept = 0;
  for (std::int64_t tokens = 2048; tokens <= (quick ? 4096 : 16384); tokens *= 2) {
    const Problem p = problem_of(ranks * tokens);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Single single{time_single(bench, bench.registry, p, pass).median};
      if (bench.has_cudnn) single.cudnn_seconds = time_single(bench, bench.cudnn, p, pass).median;
      for (const Scheme& s : schemes)
        kept += report(results, p, s, pass, time_pass(bench, p, s, pass), single);
    }
  }
  io::write_text_atomic(out, j.dump(1) + "\n");
  fmt::print("{} of {} cases keep their limits\n", kept, results.size());
  return kept == static_cast<int>(results.size()) ? 0 : static_cast<int>(Exit::invalid);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const bool quick = argc == 4 && std::string(argv[3]) == "--quick";
  if (argc < 3 || argc > 4 || (argc == 4 && !quick)) {
    std::fprintf(stderr,
                 "usage: bench_gpu_pass OUT.json MACHINE.toml [--quick: up to 4096 tokens]\n");
    return 2;
  }
  const tessera::parallel::World guard(argc, argv);
  if (tessera::memory::device_count() == 0) {
    std::fprintf(stderr, "skipped: no CUDA device\n");
    return 77;
  }
  try {
    return tessera::run(argv[1], argv[2], quick);
  } catch (const tessera::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return static_cast<int>(e.code());
  }
}
