// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "drivers/comm/links.hpp"
#include "drivers/comm/tile.hpp"
#include "drivers/comm/timing.hpp"
#include "kernels/cuda/register.hpp"
#include "memory/stream.hpp"
#include "parallel/transport.hpp"

namespace tessera::drivers {

namespace {

using parallel::Communicator;
using parallel::Message;
using parallel::Route;
using Body = std::function<void()>;

constexpr int heads = 32;

struct Neighbours {
  int next = 0, before = 0;
};

class GpuBench {
 public:
  GpuBench(Communicator& comm, const GpuOptions& options, bool shared)
      : comm_(comm),
        options_(options),
        transport_(
            parallel::make_transport(comm, {.name = options.transport, .shared_device = shared})) {
    kernels::register_cuda(registry_, budget_);
  }

  std::string transport() const { return std::string(transport_->name()); }

  /// Median time of one of `calls` equal copies of 1 element: what starting any step costs.
  double step_overhead();
  /// Bytes read and written per second by a copy that no cache holds.
  double memory_rate();
  GpuTable operator_rate(bool forward, DType dtype);
  /// All ranks send to `next` at once, several sizes.
  GpuTable messages(const std::string& name, Neighbours ring);
  double overlap(Neighbours ring);

 private:
  int repeats() const { return options_.quick ? 5 : 20; }
  /// Median seconds of what `body` puts on the compute stream (and on streams forked from it),
  /// replayed as a graph; of this rank.
  double replayed(const Body& body, Route* route = nullptr);
  double copy_time(std::int64_t elements, int calls);
  std::unique_ptr<Route> shift(Neighbours ring, const Buffer& out, const Buffer& in);
  double median_of_ranks(double mine) const { return median(comm_.all_gather(mine)); }

  Communicator& comm_;
  GpuOptions options_;
  Budget budget_;
  ops::Registry registry_;
  memory::Stream compute_, sending_{memory::Stream::Priority::high};
  std::unique_ptr<parallel::Transport> transport_;
};

double GpuBench::replayed(const Body& body, Route* route) {
  const memory::Graph graph(compute_.handle(), body);
  const memory::Event begin(true), end(true);
  std::vector<double> times;
  for (int i = 0; i < repeats() + 1; ++i) {
    comm_.barrier();
    // The clock starts behind a first launch: the second one is on the device by then, so that the
    // host's part of a launch is not counted.
    graph.launch(compute_.handle());
    begin.record(compute_.handle());
    graph.launch(compute_.handle());
    end.record(compute_.handle());
    while (!end.done()) {
      if (route) route->progress();
    }
    if (i > 0) times.push_back(memory::Event::seconds_between(begin, end));
  }
  return median(times);
}

double GpuBench::copy_time(std::int64_t elements, int calls) {
  const Tensor x = make_tensor(budget_, DType::f32, {elements, 1, 1}, "copy source", Space::cuda);
  const Tensor y = make_tensor(budget_, DType::f32, {elements, 1, 1}, "copy target", Space::cuda);
  fill(x.ref);
  ops::Call call{"tensor.copy", {x.ref, y.ref}, {}, {}};
  call.stream = compute_.handle();
  registry_.prepare(call);
  const double seconds = replayed([&] {
    for (int i = 0; i < calls; ++i) registry_.run(call);
  });
  return median_of_ranks(seconds / calls);
}

double GpuBench::step_overhead() { return copy_time(1, 200); }

double GpuBench::memory_rate() {
  constexpr std::int64_t elements = std::int64_t{1} << 25;  // 128 MiB each, beyond any cache
  return 2.0 * 4 * elements / copy_time(elements, 4);
}

GpuTable GpuBench::operator_rate(bool forward, DType dtype) {
  // Without tensor cores long tiles would take seconds.
  const bool plain =
      Tile(forward, dtype, 512, heads, options_.head_dim, Space::cuda).backend(registry_) ==
      "cuda-plain";
  std::vector<std::int64_t> sizes{512, 1024, 2048, 4096, 8192};
  if (plain) sizes = {512, 1024, 2048};
  if (dtype == DType::f64) sizes = {256, 512, 1024};
  if (options_.quick) sizes = {sizes[0], sizes[sizes.size() - 2]};
  const char* op = forward ? "attention.forward" : "attention.backward";
  GpuTable table{fmt::format("{} {}", op, name_of(dtype)), {}, {}};
  for (const std::int64_t tokens : sizes) {
    Tile tile(forward, dtype, tokens, heads, options_.head_dim, Space::cuda);
    tile.prepare(registry_, compute_.handle());
    tile.run_on(registry_, compute_.handle());
    // Short tiles back to back, as in a run; the slow kernels take long enough alone.
    const int calls = plain ? 1 : static_cast<int>(std::max<std::int64_t>(4096 / tokens, 1));
    const double seconds = replayed([&] {
      for (int i = 0; i < calls; ++i) tile.run_on(registry_, compute_.handle());
    });
    table.samples.push_back({tile.flops(), median_of_ranks(seconds / calls)});
  }
  table.line = fit_line(table.samples);
  return table;
}

std::unique_ptr<Route> GpuBench::shift(Neighbours ring, const Buffer& out, const Buffer& in) {
  const Message send{Message::Kind::send, out.data(), out.bytes() / 4, DType::f32, ring.next, 1, 0};
  const Message recv{Message::Kind::recv, in.data(), in.bytes() / 4, DType::f32, ring.before, 1, 0};
  return transport_->open({{0, {send, recv}}}, budget_);
}

GpuTable GpuBench::messages(const std::string& name, Neighbours ring) {
  GpuTable table{name, {}, {}};
  std::vector<std::int64_t> sizes{1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26};
  if (options_.quick) sizes = {1 << 12, 1 << 20, 1 << 24};
  for (const std::int64_t bytes : sizes) {
    const Buffer out(budget_, bytes, "message out", Space::cuda);
    const Buffer in(budget_, bytes, "message in", Space::cuda);
    const auto route = shift(ring, out, in);
    const int calls = bytes <= 1 << 20 ? 20 : 4;
    const double seconds = replayed(
        [&] {
          for (int i = 0; i < calls; ++i) route->start(0, compute_.handle());
        },
        route.get());
    table.samples.push_back({static_cast<double>(bytes), comm_.all_reduce_max(seconds / calls)});
  }
  table.line = fit_line(table.samples);
  return table;
}

double GpuBench::overlap(Neighbours ring) {
  const std::int64_t bytes = options_.quick ? 16 << 20 : 64 << 20;
  constexpr int messages = 4;
  const Buffer out(budget_, bytes, "message out", Space::cuda);
  const Buffer in(budget_, bytes, "message in", Space::cuda);
  const auto route = shift(ring, out, in);
  Tile tile(true, DType::bf16, 2048, heads, options_.head_dim, Space::cuda);
  tile.prepare(registry_, compute_.handle());
  tile.run_on(registry_, compute_.handle());
  const auto send = [&](const memory::Stream& stream) {
    for (int i = 0; i < messages; ++i) route->start(0, stream.handle());
  };
  int tiles = 1;
  const auto work = [&] {
    for (int i = 0; i < tiles; ++i) tile.run_on(registry_, compute_.handle());
  };
  const double transfer = comm_.all_reduce_max(replayed([&] { send(compute_); }, route.get()));
  const double one = median_of_ranks(replayed(work));
  // Twice as much compute as transfer, the same number of tiles on every rank.
  tiles = 1 + static_cast<int>(std::min(std::ceil(2 * transfer / one), 500.0));
  const double compute = median_of_ranks(replayed(work));
  const memory::Event fork, join;
  const double both = median_of_ranks(replayed(
      [&] {
        fork.record(compute_.handle());
        sending_.wait(fork);
        send(sending_);
        work();
        join.record(sending_.handle());
        compute_.wait(join);
      },
      route.get()));
  return std::clamp(1 - (both - compute) / transfer, 0.0, 1.0);
}

/// One rank has nobody to send to: its links are those of a copy in its own memory.
plan::Tier own_memory(const plan::Machine& m) { return {m.step_overhead_s, m.memory_b_s / 2}; }

void measure_messages(GpuBench& bench, const Communicator& comm, GpuMachine& result) {
  plan::Machine& m = result.machine;
  m.intra = m.inter = own_memory(m);
  m.overlap = 1;
  if (comm.size() == 1) return;
  const std::vector<int> hosts = find_hosts(comm);
  const auto around = [](std::pair<int, int> p) { return Neighbours{p.first, p.second}; };
  const auto add = [&](const char* name, Neighbours ring) {
    result.tables.push_back(bench.messages(name, ring));
    const Line& line = result.tables.back().line;
    return plan::Tier{line.overhead_s, line.rate};
  };
  const Neighbours inside = around(neighbours_on_host(hosts, comm.rank()));
  const bool many = *std::max_element(hosts.begin(), hosts.end()) > 0;
  // With one rank a host there is no message inside one.
  const bool pairs = comm.all_reduce_max(std::int64_t{inside.next != comm.rank()}) == 1;
  if (pairs) m.intra = m.inter = add("messages inside a host", inside);
  if (many) {
    const Neighbours across = around(neighbours_across_hosts(hosts, comm.rank()));
    m.inter = add("messages across hosts", across);
    if (!pairs) m.intra = m.inter;
    m.overlap = bench.overlap(across);
  } else {
    m.overlap = bench.overlap(inside);
  }
}

}  // namespace

GpuMachine measure_gpus(Communicator& comm, const parallel::Placement& here,
                        const GpuOptions& options, const std::function<void(const char*)>& step) {
  GpuMachine result;
  step("devices");
  result.device = parallel::choose_device(comm, here, options.share);
  GpuBench bench(comm, options, result.device.shared);
  result.transport = bench.transport();
  plan::Machine& m = result.machine;
  m.ranks_per_node = static_cast<int>(comm.all_reduce_max(std::int64_t{here.ranks_on_host}));
  m.cores_per_node = 0;
  step("memory");
  m.step_overhead_s = bench.step_overhead();
  m.memory_b_s = bench.memory_rate();
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32, DType::f64}) {
    for (const bool forward : {true, false}) {
      step(forward ? "attention.forward" : "attention.backward");
      result.tables.push_back(bench.operator_rate(forward, dtype));
      const Line& line = result.tables.back().line;
      // What any step costs is counted on its own.
      m.rates.push_back({forward ? "attention.forward" : "attention.backward", dtype,
                         std::max(line.overhead_s - m.step_overhead_s, 0.0), line.rate});
    }
  }
  step("messages");
  measure_messages(bench, comm, result);
  return result;
}

}  // namespace tessera::drivers
