// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/compute.hpp"

#include <algorithm>
#include <cmath>

#include "drivers/comm/timing.hpp"

namespace tessera::drivers {

namespace {

using parallel::Communicator;

/// Numbers in [-1, 1) that look random: timing must not profit from zeros.
void fill(const TensorRef& x) {
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < x.count(); ++i) {
    state = state * 1664525u + 1013904223u;
    const double value = state / 2147483648.0 - 1;
    if (x.dtype == DType::f64) x.as<double>()[i] = value;
    if (x.dtype == DType::f32) x.as<float>()[i] = static_cast<float>(value);
    if (x.dtype == DType::bf16) x.as<BFloat16>()[i] = BFloat16(static_cast<float>(value));
  }
}

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

/// Line through two measurements: time = overhead + flops / rate.
plan::Rate fitted(const char* op, DType dtype, double f1, double t1, double f2, double t2) {
  const double rate = t2 > t1 ? (f2 - f1) / (t2 - t1) : f2 / t2;
  const double overhead = t1 - f1 / rate;
  // A small tile that runs at a better rate than a large one has no overhead to speak of.
  if (overhead <= 0) return {op, dtype, 0, f2 / t2};
  return {op, dtype, overhead, rate};
}

plan::Rate measure_rate(const Communicator& comm, bool active, const ops::Registry& registry,
                        bool forward, DType dtype, int head_dim, bool quick) {
  constexpr int heads = 4;
  Tile small(forward, dtype, 128, heads, head_dim);
  Tile large(forward, dtype, quick ? 512 : 1024, heads, head_dim);
  const double t1 = timed_on_active(comm, active, quick ? 15 : 30, [&] { small.run(registry); });
  const double t2 = timed_on_active(comm, active, quick ? 5 : 9, [&] { large.run(registry); });
  return fitted(forward ? "attention.forward" : "attention.backward", dtype, small.flops(), t1,
                large.flops(), t2);
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

Tile::Tile(bool forward, DType dtype, std::int64_t tokens, int heads, int head_dim) {
  const DType sum = accumulate_type(dtype);
  const std::int64_t kv_heads = std::max(heads / 2, 1);
  const auto add = [&](DType t, std::array<std::int64_t, 3> shape) {
    tensors_.push_back(make_tensor(budget_, t, shape, "tile"));
    fill(tensors_.back().ref);
    call_.args.push_back(tensors_.back().ref);
  };
  add(dtype, {tokens, heads, head_dim});     // q
  add(dtype, {tokens, kv_heads, head_dim});  // k
  add(dtype, {tokens, kv_heads, head_dim});  // v
  if (forward) {
    add(sum, {tokens, heads, head_dim});  // o
    add(sum, {heads, tokens, 1});         // lse
  } else {
    add(dtype, {tokens, heads, head_dim});   // do
    add(sum, {heads, tokens, 1});            // lse
    add(sum, {heads, tokens, 1});            // delta
    add(sum, {tokens, heads, head_dim});     // dq
    add(sum, {tokens, kv_heads, head_dim});  // dk
    add(sum, {tokens, kv_heads, head_dim});  // dv
  }
  mask_ = {0, tokens, 0, tokens};
  call_.name = forward ? "attention.forward" : "attention.backward";
  call_.attributes.mask = {&mask_, 1};
  call_.attributes.scale = 1 / std::sqrt(static_cast<double>(head_dim));
  const double cells = static_cast<double>(tokens) * static_cast<double>(tokens) * heads;
  flops_ = cells * head_dim * (forward ? 4 : 10);
}

void Tile::run(const ops::Registry& registry, const std::function<void()>& progress) {
  call_.progress = progress;
  registry.run(call_);
}

ComputeRates measure_compute(const Communicator& comm, const parallel::Placement& placement,
                             const ops::Registry& registry, int head_dim, bool quick) {
  const bool active = placement.rank_on_host < placement.cores_on_host;
  ComputeRates result;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
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
