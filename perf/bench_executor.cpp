// SPDX-License-Identifier: Apache-2.0
// What the executor adds to the operators it calls: the same 64 tiles of 512 x 512 tokens, f32,
// run through a plan and called directly, in turn. One rank, no transfers.
#include <benchmark/benchmark.h>
#include <fmt/core.h>
#include <mpi.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <ctime>
#include <functional>
#include <map>

#include "exec/executor.hpp"
#include "kernels/kokkos/register.hpp"
#include "plan/builder.hpp"

namespace tessera {
namespace {

constexpr std::int64_t chunks = 8, rows = 512, heads = 1, dim = 128;

/// All pairs of 8 query and 8 key chunks, forward.
plan::Plan tiles() {
  plan::Plan plan;
  plan::Builder b(plan);
  const int queue = b.queue(plan::QueueKind::compute, "compute");
  auto tensor = [&](const char* name, std::int64_t i, std::int64_t h, std::int64_t r,
                    std::int64_t d) {
    return b.buffer(
        {fmt::format("{}{}", name, i), plan::Role::input, DType::f32, {r, h, d}, false});
  };
  std::vector<std::array<int, 3>> q;
  std::vector<std::array<int, 2>> kv;
  for (std::int64_t i = 0; i < chunks; ++i) {
    q.push_back({tensor("q", i, heads, rows, dim), tensor("o", i, heads, rows, dim),
                 tensor("lse", i, rows, heads, 1)});
    kv.push_back({tensor("k", i, heads, rows, dim), tensor("v", i, heads, rows, dim)});
  }
  using plan::Access;
  for (const auto& x : q)
    for (const auto& y : kv)
      b.compute(queue, "tile", {}, {"attention.forward", 1, 1},
                {b.all(x[0], Access::read), b.all(y[0], Access::read), b.all(y[1], Access::read),
                 b.all(x[1], Access::update), b.all(x[2], Access::update)});
  return plan;
}

/// Processor seconds, which a shared core disturbs less than the clock on the wall.
double seconds(const std::function<void()>& body) {
  auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double start = now();
  body();
  return now() - start;
}

void executor_overhead(benchmark::State& state) {
  ops::Registry registry;
  kernels::register_kokkos(registry);
  Budget budget;
  parallel::Communicator self(MPI_COMM_SELF, "bench");
  const plan::Plan plan = tiles();
  std::map<std::string, Tensor> tensors;
  for (const plan::Buffer& b : plan.buffers)
    tensors.emplace(b.name, make_tensor(budget, b.dtype, b.shape, b.name));
  const ops::Band all{0, rows, 0, rows};
  const ops::Attributes attributes{{&all, 1}, 0.1, 0};
  exec::Binding binding;
  binding.external = [&](const plan::Buffer& b) { return tensors.at(b.name).ref; };
  binding.attributes = [&](const plan::Step&) { return attributes; };
  exec::Executor executor(plan, binding, registry, self, budget);

  std::vector<ops::Call> calls;
  for (const plan::Step& s : plan.steps) {
    ops::Call call{s.work.op, {}, attributes, {}};
    for (const plan::Use& u : plan.uses(s))
      call.args.push_back(tensors.at(plan.buffers[u.buffer].name).ref);
    calls.push_back(std::move(call));
  }
  const ops::Implementation& tile = registry.choose(calls.front());

  std::vector<double> ratios;
  for (auto _ : state) {
    auto run_plan = [&] { executor.run(); };
    auto run_calls = [&] {
      for (const ops::Call& c : calls) tile.run(c);
    };
    // The first of the two finds colder caches: they take turns.
    const bool plan_first = ratios.size() % 2 == 0;
    const double first = plan_first ? seconds(run_plan) : seconds(run_calls);
    const double second = plan_first ? seconds(run_calls) : seconds(run_plan);
    const double planned = plan_first ? first : second, direct = plan_first ? second : first;
    ratios.push_back(planned / direct);
    state.SetIterationTime(planned);
  }
  std::sort(ratios.begin(), ratios.end());
  state.counters["over_direct"] = ratios[ratios.size() / 2];
}
BENCHMARK(executor_overhead)->UseManualTime()->Iterations(40)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::parallel::World guard(argc, argv);
  int no_arguments = 1;
  const Kokkos::ScopeGuard kokkos(no_arguments, argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
