// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/units.hpp"
#include "base/version.hpp"
#include "drivers/comm/timing.hpp"

namespace tessera::drivers {

using parallel::Communicator;
using parallel::Placement;

namespace {

void print_matrix(const Links& links, int n, bool latency) {
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
void print_spread(const Links& links, int n, bool across) {
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
      across ? "across hosts" : "inside a host", *l0, median(latency), *l1, *b0, median(bandwidth),
      *b1);
}

/// "3 ranks", "1 host".
std::string counted(int n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string when_and_where(const Placement& here, const CommOptions& options) {
  const std::time_t now = std::time(nullptr);
  return fmt::format("Measured by tessera-comm{}{} on {:%Y-%m-%d %H:%M} UTC, host {}.",
                     options.device == "host" ? "" : " --device " + options.device,
                     options.quick ? " --quick" : "", fmt::gmtime(now), here.host);
}

}  // namespace

void print_links(const Links& links, const Placement& here) {
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

void print_machine(const plan::Machine& m) {
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

void print_tables(const std::vector<GpuTable>& tables) {
  for (const GpuTable& table : tables) {
    const bool bytes = table.name.starts_with("messages");
    fmt::print("\n{}: {} + work / {}, largest error {:.1f} %\n", table.name,
               units::format_seconds(table.line.overhead_s),
               units::format_rate(table.line.rate, bytes ? "B/s" : "flop/s"),
               100 * worst_error(table.line, table.samples));
    for (const Sample& s : table.samples) {
      fmt::print("{:>14}  {:>12}  {:>16}\n",
                 bytes ? units::format_bytes(s.work) : fmt::format("{:.3g} flop", s.work),
                 units::format_seconds(s.seconds),
                 units::format_rate(s.work / s.seconds, bytes ? "B/s" : "flop/s"));
    }
  }
}

std::vector<std::string> host_notes(const Communicator& world, const Placement& here,
                                    const CommOptions& options) {
  return {
      when_and_where(here, options),
      fmt::format("{} on {} with {} each{}; head dimension {}.", counted(world.size(), "rank"),
                  counted(here.num_hosts, "host"), counted(here.cores_on_host, "core"),
                  here.oversubscribed ? " (oversubscribed: ranks share cores)" : "",
                  options.head_dim),
      world.size() == 1 ? "No second rank: the links are those of a message to itself."
      : here.num_hosts == 1
          ? "Links: all ranks shift around a ring at once. One host: [machine.inter] is a copy."
          : "Links: all ranks shift around a ring at once, inside the hosts and across them.",
      "Rates: time of a full attention tile = overhead + flops / rate, one rank a core.",
      version_line(),
  };
}

std::vector<std::string> gpu_notes(const Communicator& world, const Placement& here,
                                   const CommOptions& options, const GpuMachine& gpus) {
  const parallel::Device& device = gpus.device;
  return {
      when_and_where(here, options),
      fmt::format("{} on {}, {}: {}.", counted(world.size(), "rank"),
                  counted(here.num_hosts, "host"), counted(device.num_devices, "GPU"), device.text),
      device.shared ? fmt::format("RANKS SHARE A GPU ({} on that of rank 0) and all measure at "
                                  "once: every figure is that of a part of a GPU.",
                                  device.ranks_on_device)
                    : "One rank per GPU.",
      world.size() == 1
          ? "No second rank: the links are those of a copy in device memory."
          : fmt::format("Links: transport {}, all ranks shift around a ring at once.{}",
                        gpus.transport,
                        here.num_hosts == 1 ? " One host: [machine.inter] is a copy." : ""),
      fmt::format("Rates: time of a full attention tile, 32 query and 16 KV heads of dimension {}, "
                  "= step_overhead + overhead + flops / rate; replayed graphs, device events.",
                  options.head_dim),
      version_line(),
  };
}

}  // namespace tessera::drivers
