// SPDX-License-Identifier: Apache-2.0
// tessera-comm: measures links, operator rates and overlap on the ranks it is started with, prints
// them and writes a machine file that the simulator reads.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/log.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "drivers/comm/compute.hpp"
#include "drivers/comm/links.hpp"
#include "drivers/comm/timing.hpp"
#include "drivers/common/command_line.hpp"
#include "drivers/common/machine_file.hpp"
#include "drivers/common/main.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"
#include "parallel/watchdog.hpp"

namespace {

using namespace tessera;
using parallel::Communicator;
using parallel::Placement;

struct Options {
  std::string out, name;
  int head_dim = 128;
  double watchdog_s = 300;
  bool quick = false;
};

std::optional<int> parse(int argc, char** argv, const Communicator& world, Options& options) {
  CLI::App app(
      "Measures latency and bandwidth between the ranks, operator rates and overlap, and writes "
      "a machine file.",
      "tessera-comm");
  app.add_option("--out", options.out, "machine file to write (inputs/machines/*.toml)");
  app.add_option("--name", options.name, "name of the machine; default: the host's");
  app.add_option("--head-dim", options.head_dim, "head dimension of the attention tiles, 128")
      ->check(CLI::Range(8, 256));
  app.add_option("--watchdog", options.watchdog_s, "end the job after SECONDS without progress");
  app.add_flag("--quick", options.quick, "fewer repeats and smaller tiles, below 10 s");
  app.set_version_flag("--version", version_line());
  return drivers::parse_command_line(app, argc, argv, world);
}

void print_matrix(const drivers::Links& links, int n, bool latency) {
  fmt::print("\n{} of every pair, ping-pong ({}):\n      ", latency ? "latency" : "bandwidth",
             latency ? "microseconds, 8 bytes" : "GB/s one way, 1 MiB");
  for (int b = 0; b < n; ++b) fmt::print("{:>7}", b);
  for (int a = 0; a < n; ++a) {
    fmt::print("\n{:>6}", a);
    for (int b = 0; b < n; ++b) {
      const plan::Tier& t = links.pairs[static_cast<std::size_t>(a) * n + b];
      if (a == b)
        fmt::print("{:>7}", "-");
      else
        fmt::print("{:>7.3g}", latency ? t.latency_s * 1e6 : t.bandwidth_b_s * 1e-9);
    }
  }
  fmt::print("\n");
}

/// Smallest, median and largest where a matrix would not fit on a screen.
void print_spread(const drivers::Links& links, int n, bool across) {
  std::vector<double> latency, bandwidth;
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (a == b || (links.host_of[a] != links.host_of[b]) != across) continue;
      latency.push_back(links.pairs[static_cast<std::size_t>(a) * n + b].latency_s * 1e6);
      bandwidth.push_back(links.pairs[static_cast<std::size_t>(a) * n + b].bandwidth_b_s * 1e-9);
    }
  }
  if (latency.empty()) return;
  const auto [l0, l1] = std::minmax_element(latency.begin(), latency.end());
  const auto [b0, b1] = std::minmax_element(bandwidth.begin(), bandwidth.end());
  fmt::print(
      "\npairs {}: latency {:.3g} / {:.3g} / {:.3g} us, bandwidth {:.3g} / {:.3g} / {:.3g} "
      "GB/s (min / median / max)\n",
      across ? "across hosts" : "inside a host", *l0, drivers::median(latency), *l1, *b0,
      drivers::median(bandwidth), *b1);
}

void print_links(const drivers::Links& links, const Placement& here) {
  const int n = static_cast<int>(links.host_of.size());
  if (n > 1 && n <= 16) {
    print_matrix(links, n, true);
    print_matrix(links, n, false);
  } else if (n > 16) {
    print_spread(links, n, false);
    print_spread(links, n, true);
  }
  const auto line = [](const char* what, const plan::Tier& t) {
    fmt::print("{:<28}{:>12}  {:>14}\n", what, units::format_seconds(t.latency_s),
               units::format_rate(t.bandwidth_b_s, "B/s"));
  };
  fmt::print("\n{:<28}{:>12}  {:>14}\n", "all ranks at once", "latency", "bandwidth");
  line(n == 1 ? "message to itself" : "inside a host", links.intra);
  if (here.num_hosts > 1) line("across hosts", links.inter);
}

void print_compute(const plan::Machine& m) {
  fmt::print("\n{:<20}{:<6}{:>12}  {:>14}\n", "operator", "dtype", "overhead", "rate");
  for (const plan::Rate& r : m.rates) {
    fmt::print("{:<20}{:<6}{:>12}  {:>14}\n", r.op, name_of(r.dtype),
               units::format_seconds(r.overhead_s), units::format_rate(r.flops_s, "flop/s"));
  }
  fmt::print("{:<26}{:>12}  {:>14}\n", "copy in memory", units::format_seconds(m.step_overhead_s),
             units::format_rate(m.memory_b_s, "B/s"));
  fmt::print("{:<26}{:>12.0f} % of its speed while a transfer moves\n", "compute keeps",
             100 * m.overlap);
}

std::vector<std::string> notes(const Communicator& world, const Placement& here,
                               const Options& options) {
  const std::time_t now = std::time(nullptr);
  return {
      fmt::format("Measured by tessera-comm{} on {:%Y-%m-%d %H:%M} UTC, host {}.",
                  options.quick ? " --quick" : "", fmt::gmtime(now), here.host),
      fmt::format(
          "{} on {} host{} with {} core{} each{}; head dimension {}.",
          world.size() == 1 ? "1 rank" : fmt::format("{} ranks", world.size()), here.num_hosts,
          here.num_hosts == 1 ? "" : "s", here.cores_on_host, here.cores_on_host == 1 ? "" : "s",
          here.oversubscribed ? " (oversubscribed: ranks share cores)" : "", options.head_dim),
      world.size() == 1 ? "No second rank: the links are those of a message to itself."
      : here.num_hosts == 1
          ? "Links: all ranks shift around a ring at once. One host: [machine.inter] is a copy."
          : "Links: all ranks shift around a ring at once, inside the hosts and across them.",
      "Rates: time of a full attention tile = overhead + flops / rate, one rank a core.",
      version_line(),
  };
}

plan::Machine measure(Communicator& world, const Placement& here, const Options& options,
                      parallel::Watchdog& watchdog, drivers::Links& links) {
  ops::Registry registry;
  kernels::register_reference(registry);
  kernels::register_kokkos(registry);
  const auto step = [&](const char* what) {
    watchdog.beat();
    watchdog.describe([what] { return fmt::format("measuring {}", what); });
  };
  plan::Machine m;
  m.name = options.name.empty() ? here.host : options.name;
  m.ranks_per_node = static_cast<int>(world.all_reduce_max(std::int64_t{here.ranks_on_host}));
  m.cores_per_node = static_cast<int>(world.all_reduce_min(std::int64_t{here.cores_on_host}));
  step("links");
  links = drivers::measure_links(world, options.quick);
  m.intra = links.intra;
  m.inter = links.inter;
  step("operator rates");
  const auto rates =
      drivers::measure_compute(world, here, registry, options.head_dim, options.quick);
  m.rates = rates.rates;
  m.memory_b_s = rates.memory_b_s;
  m.step_overhead_s = rates.step_overhead_s;
  step("overlap");
  m.overlap = drivers::measure_overlap(world, registry, options.head_dim, options.quick);
  step("done");
  return m;
}

int body(Communicator& world, int argc, char** argv) {
  Options options;
  if (const auto done = parse(argc, argv, world, options)) return *done;
  const double begin = drivers::now_s();
  const Placement here = parallel::find_placement(world);
  log::setup(world.rank(), here.host);
  parallel::Watchdog watchdog(options.watchdog_s,
                              fmt::format("[rank {} {}]", world.rank(), here.host));
  drivers::Links links;
  const plan::Machine machine = measure(world, here, options, watchdog, links);
  const auto comments = notes(world, here, options);
  if (world.rank() == 0) {
    for (const std::string& line : comments) fmt::print("{}\n", line);
    print_links(links, here);
    print_compute(machine);
  }
  parallel::together(world, [&] {
    if (world.rank() == 0 && !options.out.empty())
      drivers::write_whole_file(options.out, drivers::machine_text(machine, comments));
  });
  if (world.rank() == 0) {
    fmt::print(
        "\nRESULT program=tessera-comm ranks={} latency_s={:.4g} bandwidth_b_s={:.4g} "
        "overlap={:.3f} seconds={:.2f} file={}\n",
        world.size(), machine.intra.latency_s, machine.intra.bandwidth_b_s, machine.overlap,
        drivers::now_s() - begin, options.out.empty() ? "none" : options.out);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return drivers::guarded_main(argc, argv,
                               [&](Communicator& world) { return body(world, argc, argv); });
}
