// SPDX-License-Identifier: Apache-2.0
// What splitting attention over 4 ranks costs one GPU: the compute steps of all 4 plans of a scheme
// run one rank after the other, without transfers, each as one graph, beside one call of the
// operator for the whole problem, a graph too. Causal, zigzag, 32 heads of 128, bf16. All cases of
// a size take turns, so that clocks and power are alike: ratios are medians of those within a
// round. Flops are those of visible pairs. Exit code 1 when a limit is not kept.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>

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

constexpr int ranks = 4, repetitions = 20;
constexpr int warm_ups = 3;            // a pass becomes a graph after its first run
constexpr double warm_up_s = 0.15;     // clocks follow the load within about 0.1 s
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

/// One run of something that is measured.
struct Sample {
  double device_s = 0, host_s = 0;
};

/// One call of the operator for the whole problem, with what executors do for plans: outputs that
/// the operator can write are not summed into, and the call is a graph.
class Single {
 public:
  Single(Bench& bench, const ops::Registry& registry, const Problem& p, Pass pass)
      : mask_(p.mask.bands()), stream_(bench.device.compute.front().handle()) {
    ops::Call call{pass == Pass::forward ? "attention.forward" : "attention.backward",
                   arguments(bench, p, pass),
                   {mask_, p.scale_factor(), 0},
                   {},
                   stream_};
    const ops::Implementation& chosen = registry.choose(call);
    call.attributes.fresh = ops::fresh_bits(chosen, call);
    registry.prepare(call);
    chosen.run(call);  // kernels are loaded at their first launch
    memory::synchronize(stream_);
    graph_.emplace(stream_, [&] { chosen.run(call); });
  }
  Sample run() {
    begin_.record(stream_);
    graph_->launch(stream_);
    end_.record(stream_);
    end_.wait();
    return {memory::Event::seconds_between(begin_, end_), 0};
  }

 private:
  std::vector<TensorRef> arguments(Bench& bench, const Problem& p, Pass pass) {
    const std::array<std::int64_t, 3> rows{p.sequence, p.query_heads, p.head_dim};
    const std::array<std::int64_t, 3> stats{p.query_heads, p.sequence, 1};
    const auto make = [&](int count, DType t, const std::array<std::int64_t, 3>& shape) {
      for (int i = 0; i < count; ++i)
        tensors_.push_back(bench.tensors.make(t, shape, "whole problem"));
    };
    const bool forward = pass == Pass::forward;
    make(forward ? 3 : 4, DType::bf16, rows);  // q k v, and do
    if (!forward) make(2, DType::f32, stats);
    make(forward ? 1 : 3, DType::f32, rows);
    if (forward) make(1, DType::f32, stats);
    std::vector<TensorRef> out;
    for (const Tensor& t : tensors_) out.push_back(t.ref);
    return out;
  }

  std::vector<Tensor> tensors_;
  std::vector<ops::Band> mask_;
  void* stream_;
  memory::Event begin_{true}, end_{true};
  std::optional<memory::Graph> graph_;
};

/// The plan of one rank. What the other ranks would have sent must be numbers and not zeros, so
/// that scratch which comes by message is bound too.
class Rank {
 public:
  Rank(Bench& bench, const attention::Context& context, const plan::Plan& plan, int rank)
      : plan_(plan) {
    for (const plan::Step& s : plan_.steps)
      for (const plan::Use& u : plan_.uses(s))
        if (s.kind == plan::StepKind::recv)
          plan_.buffers[static_cast<std::size_t>(u.buffer)].role = plan::Role::saved;
    for (const plan::Buffer& b : plan_.buffers) {
      const bool bound = b.role != plan::Role::scratch;
      tensors_.push_back(bound ? bench.tensors.make(b.dtype, b.shape, b.name) : Tensor{});
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

/// The plans of all ranks of a scheme, one after the other.
class Ranks {
 public:
  Ranks(Bench& bench, const Problem& p, const Scheme& scheme, Pass pass)
      : context_(p, scheme, ranks, pass) {
    const plan::Program program = attention::make_program(p, scheme, ranks, pass, bench.machine);
    for (int r = 0; r < ranks; ++r)
      all_.push_back(
          std::make_unique<Rank>(bench, context_, program.plans[static_cast<std::size_t>(r)], r));
  }
  Sample run() {
    Sample out;
    for (const auto& rank : all_) {
      const exec::Measured run = rank->run();
      out.device_s += run.seconds;
      out.host_s += run.launch_s;
    }
    return out;
  }

 private:
  attention::Context context_;
  std::vector<std::unique_ptr<Rank>> all_;
};

/// Something that takes its turn in every round, and its time in each of them.
struct Case {
  std::function<Sample()> run;
  std::vector<Sample> rounds{};
};

/// Runs all cases in turn, first for a while and then for the record; each round begins with
/// another one.
void take_turns(std::vector<Case>& cases) {
  double spent = 0;
  for (int i = 0; i < warm_ups || spent < warm_up_s; ++i)
    for (Case& c : cases) spent += c.run().device_s;
  for (std::size_t round = 0; round < repetitions; ++round) {
    std::vector<Sample> samples(cases.size());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::size_t at = (round + i) % cases.size();
      samples[at] = cases[at].run();
    }
    for (std::size_t i = 0; i < cases.size(); ++i) cases[i].rounds.push_back(samples[i]);
  }
}

/// Over the rounds, f of the samples of a case.
template <class F>
Spread over_rounds(const Case& c, F f) {
  std::vector<double> v;
  for (const Sample& s : c.rounds) v.push_back(f(s));
  return spread_of(v);
}
Spread seconds_of(const Case& c) {
  return over_rounds(c, [](const Sample& s) { return s.device_s; });
}
/// Time of `one` over that of `c`, round by round.
Spread ratio_of(const Case& one, const Case& c) {
  auto other = one.rounds.begin();
  return over_rounds(c, [&](const Sample& s) { return (other++)->device_s / s.device_s; });
}

/// One line of the table and one JSON object; false when a limit is not kept.
bool report(nlohmann::ordered_json& results, const Problem& p, Pass pass, const Scheme& scheme,
            const Case& c, const Case& single, const Case* cudnn) {
  const std::int64_t tokens = p.sequence / ranks;
  const double flops = p.flops(pass, p.mask.area(), p.query_heads), limit = limit_of(tokens);
  const auto rate = [&](const Case& x) { return 1e-12 * flops / seconds_of(x).median; };
  const Spread seconds = seconds_of(c), of_single = ratio_of(single, c);
  const double launch =
      over_rounds(c, [](const Sample& s) { return s.host_s / s.device_s; }).median;
  const bool fast = of_single.median >= limit, light = launch <= launch_limit;
  nlohmann::ordered_json j{{"scheme", scheme.text()},        {"pass", attention::name_of(pass)},
                           {"tokens_per_rank", tokens},      {"rate", rate(c)},
                           {"median_s", seconds.median},     {"min_s", seconds.min},
                           {"max_s", seconds.max},           {"single_rate", rate(single)},
                           {"of_single", of_single.median},  {"of_single_min", of_single.min},
                           {"of_single_max", of_single.max}, {"limit", limit},
                           {"launch_share", launch},         {"launch_limit", launch_limit},
                           {"kept", fast && light}};
  std::string of_cudnn = "-";
  if (cudnn) {
    const double ratio = ratio_of(*cudnn, c).median;
    j["cudnn_rate"] = rate(*cudnn);
    j["of_cudnn"] = ratio;
    of_cudnn = fmt::format("{:.3f}", ratio);
  }
  fmt::print(
      "{:<12}{:<10}{:>8}{:>10.3f} ms{:>9.1f}{:>9.1f}{:>8.3f} ({:.3f} .. {:.3f}){:>9}{:>9.2f}%"
      "  {}{}\n",
      scheme.text(), attention::name_of(pass), tokens, 1e3 * seconds.median, rate(c), rate(single),
      of_single.median, of_single.min, of_single.max, of_cudnn, 100 * launch,
      fast ? "" : fmt::format("BELOW {:.2f} ", limit),
      light ? "" : fmt::format("LAUNCH ABOVE {:.0f} %", 100 * launch_limit));
  std::fflush(stdout);
  results.push_back(std::move(j));
  return fast && light;
}

/// Measures some schemes and the single calls in turn; how many keep their limits.
int measure(Bench& bench, nlohmann::ordered_json& results, const Problem& p, Pass pass,
            std::span<const Scheme> schemes) {
  std::deque<Single> singles;
  std::deque<Ranks> passes;
  std::vector<Case> cases;
  const auto add = [&](auto& list, auto&&... arguments) {
    auto* one = &list.emplace_back(bench, arguments...);
    cases.push_back({[one] { return one->run(); }});
  };
  add(singles, bench.registry, p, pass);
  if (bench.has_cudnn) add(singles, bench.cudnn, p, pass);
  for (const Scheme& s : schemes) add(passes, p, s, pass);
  take_turns(cases);
  int kept = 0;
  for (std::size_t i = 0; i < schemes.size(); ++i)
    kept += report(results, p, pass, schemes[i], cases[singles.size() + i], cases[0],
                   bench.has_cudnn ? &cases[1] : nullptr);
  return kept;
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
                           {"warm_up_s", warm_up_s},
                           {"in_turn", true},
                           {"repetitions", repetitions}};
  auto& results = j["results"] = nlohmann::ordered_json::array();
  fmt::print(
      "all cases of a size in turn, {} rounds after {} s; ratio: median within rounds (least .. "
      "most)\n{:<12}{:<10}{:>8}{:>13}{:>9}{:>9}{:>25}{:>9}{:>10}\n",
      repetitions, warm_up_s, "scheme", "pass", "per rank", "4 ranks", "TFLOP/s", "1 call", "of it",
      "of cuDNN", "launch");
  int kept = 0;
  for (std::int64_t tokens = 2048; tokens <= (quick ? 4096 : 16384); tokens *= 2) {
    const Problem p = problem_of(ranks * tokens);
    // All schemes of the largest size together would not fit into the memory of the device.
    const std::size_t together = tokens < 16384 ? schemes.size() : 1;
    for (const Pass pass : {Pass::forward, Pass::backward})
      for (std::size_t at = 0; at < schemes.size(); at += together)
        kept += measure(bench, results, p, pass, std::span(schemes).subspan(at, together));
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
