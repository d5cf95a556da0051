// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/compute.hpp"

#include <algorithm>
#include <array>

#include "drivers/comm/fit.hpp"
#include "drivers/comm/tile.hpp"
#include "drivers/comm/timing.hpp"

namespace tessera::drivers {

namespace {

using parallel::Communicator;

/// Median over the ranks for which `active` holds; all ranks get it.
double median_of_active(const Communicator& comm, bool active, double value) {
  std::vector<double> values = comm.all_gather(active ? value : -1.0);
  std::erase_if(values, [](double v) { return v < 0; });
  return median(values);
}

/// Runs `body` on the active ranks while the others sleep.
double timed_on_active(const Communicator& comm, bool active, int repeats,
                       const std::function<void()>& body) {
  sleeping_barrier(comm);
  // Rates are those of a core of one's own, whatever else runs on the machine.
  const double seconds = active ? median_time(repeats, body, processor_s) : 0;
  sleeping_barrier(comm);
  return median_of_active(comm, active, seconds);
}

plan::Rate measure_rate(const Communicator& comm, bool active, const ops::Registry& registry,
                        bool forward, DType dtype, int head_dim, bool quick) {
  constexpr int heads = 4;
  Tile small(forward, dtype, 128, heads, head_dim);
  Tile large(forward, dtype, quick ? 512 : 1024, heads, head_dim);
  const double t1 = timed_on_active(comm, active, quick ? 15 : 30, [&] { small.run(registry); });
  const double t2 = timed_on_active(comm, active, quick ? 5 : 9, [&] { large.run(registry); });
  const Line line = fit_line(std::array{Sample{small.flops(), t1}, Sample{large.flops(), t2}});
  return {forward ? "attention.forward" : "attention.backward", dtype, line.overhead_s, line.rate};
}

double copy_time(const Communicator& comm, bool active, const ops::Registry& registry,
                 std::int64_t elements, int repeats) {
  Budget budget;
  const Tensor x = make_tensor(budget, DType::f32, {elements, 1, 1}, "copy source");
  const Tensor y = make_tensor(budget, DType::f32, {elements, 1, 1}, "copy target");
  fill(x.ref);
  const ops::Call call{"tensor.copy", {x.ref, y.ref}, {}, {}};
  return timed_on_active(comm, active, repeats, [&] { registry.run(call); });
}

}  // namespace

ComputeRates measure_compute(const Communicator& comm, const parallel::Placement& placement,
                             const ops::Registry& registry, int head_dim, bool quick) {
  const bool active = placement.rank_on_host < placement.cores_on_host;
  ComputeRates result;
  for (const DType dtype : all_dtypes) {
    for (const bool forward : {true, false}) {
      result.rates.push_back(measure_rate(comm, active, registry, forward, dtype, head_dim, quick));
    }
  }
  // 4 MiB each: the size of a chunk's partial output, beyond the private caches.
  constexpr std::int64_t elements = 1 << 20;
  const double seconds = copy_time(comm, active, registry, elements, quick ? 9 : 50);
  result.memory_b_s = 2.0 * 4 * elements / seconds;
  result.step_overhead_s = copy_time(comm, active, registry, 1, 200);
  return result;
}

double measure_overlap(Communicator& comm, const ops::Registry& registry, int head_dim,
                       bool quick) {
  if (comm.size() == 1) return 1;
  const int n = comm.size(), next = (comm.rank() + 1) % n, before = (comm.rank() + n - 1) % n;
  const std::int64_t bytes = quick ? 4 << 20 : 16 << 20;
  const int repeats = quick ? 5 : 15;
  std::vector<std::byte> out(bytes), in(bytes);
  Tile tile(true, DType::f32, 256, 2, head_dim);
  const auto start = [&](parallel::RequestSet& set) {
    comm.irecv(set, in.data(), bytes, before, 3);
    comm.isend(set, out.data(), bytes, next, 3, 0);
  };
  const auto timed = [&](const std::function<void()>& body) {
    sleeping_barrier(comm);
    const double mine = median_time(repeats, [&] {
      comm.barrier();
      body();
    });
    const std::vector<double> all = comm.all_gather(mine);
    return median(all);
  };
  const double transfer = timed([&] {
    parallel::RequestSet set;
    start(set);
    set.wait();
  });
  const double one = timed([&] { tile.run(registry); });
  // Twice as much compute as transfer, the same number of tiles on every rank.
  const int tiles = static_cast<int>(std::clamp(2 * transfer / one, 1.0, 200.0)) + 1;
  const double compute = timed([&] {
    for (int i = 0; i < tiles; ++i) tile.run(registry);
  });
  const double both = timed([&] {
    parallel::RequestSet set;
    start(set);
    const std::function<void()> progress = [&] { set.test(); };
    for (int i = 0; i < tiles; ++i) {
      tile.run(registry, progress);
      set.test();
    }
    set.wait();
  });
  return std::clamp(1 - (both - compute) / transfer, 0.0, 1.0);
}

}  // namespace tessera::drivers
