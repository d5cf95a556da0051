// SPDX-License-Identifier: Apache-2.0
// tessera-comm: measures links, operator rates and overlap on the ranks it is started with, on host
// cores or on GPUs, prints them and writes a machine file that the simulator reads.
#include <fmt/format.h>

#include <filesystem>

#include "base/log.hpp"
#include "base/version.hpp"
#include "drivers/comm/compute.hpp"
#include "drivers/comm/report.hpp"
#include "drivers/comm/timing.hpp"
#include "drivers/common/command_line.hpp"
#include "drivers/common/machine_file.hpp"
#include "drivers/common/main.hpp"
#include "io/file_system.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"
#include "parallel/watchdog.hpp"

namespace {

using namespace tessera;
using drivers::CommOptions;
using parallel::Communicator;
using parallel::Placement;

std::optional<int> parse(int argc, char** argv, const Communicator& world, CommOptions& options) {
  CLI::App app(
      "Measures latency and bandwidth between the ranks, operator rates and overlap, and writes "
      "a machine file.",
      "tessera-comm");
  app.add_option("--out", options.out, "machine file to write (inputs/machines/*.toml)");
  app.add_option("--name", options.name, "name of the machine; default: the host's");
  app.add_option("--device", options.device, "what ranks compute on: host (default) or cuda")
      ->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("--transport", options.transport,
                 "between GPUs: auto (default), nccl, peer or staged")
      ->check(CLI::IsMember({"auto", "nccl", "peer", "staged"}));
  app.add_flag("--share-device", options.share_device, "several ranks may share a GPU");
  app.add_option("--head-dim", options.head_dim, "head dimension of the attention tiles, 128")
      ->check(CLI::Range(8, 256));
  app.add_option("--watchdog", options.watchdog_s, "end the job after SECONDS without progress");
  app.add_flag("--quick", options.quick, "fewer repeats and smaller tiles, below 20 s");
  app.set_version_flag("--version", version_line());
  if (const auto done = drivers::parse_command_line(app, argc, argv, world)) return done;
  if (options.device == "host" && (options.share_device || options.transport != "auto")) {
    throw parallel::AgreedError(
        Error(Exit::usage,
              "--transport and --share-device say how GPUs are used, ranks compute on "
              "the host",
              "add --device cuda"));
  }
  return std::nullopt;
}

/// Tells the watchdog what is measured.
using StepBegins = std::function<void(const char*)>;

plan::Machine measure_host(Communicator& world, const Placement& here, const CommOptions& options,
                           const StepBegins& step, drivers::Links& links) {
  ops::Registry registry;
  kernels::register_reference(registry);
  kernels::register_kokkos(registry);
  plan::Machine m;
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
  return m;
}

struct Measured {
  plan::Machine machine;
  std::vector<std::string> notes;
};

void print_notes(const Communicator& world, const std::vector<std::string>& notes) {
  for (const std::string& line : notes) {
    if (world.rank() == 0) fmt::print("{}\n", line);
  }
}

Measured on_host(Communicator& world, const Placement& here, const CommOptions& options,
                 const StepBegins& step) {
  drivers::Links links;
  const plan::Machine machine = measure_host(world, here, options, step, links);
  const auto notes = drivers::host_notes(world, here, options);
  print_notes(world, notes);
  if (world.rank() == 0) print_links(links, here);
  return {machine, notes};
}

Measured on_gpus(Communicator& world, const Placement& here, const CommOptions& options,
                 const StepBegins& step) {
  const auto gpus = drivers::measure_gpus(
      world, here, {options.transport, options.share_device, options.head_dim, options.quick},
      step);
  const auto notes = drivers::gpu_notes(world, here, options, gpus);
  print_notes(world, notes);
  if (world.rank() == 0) drivers::print_tables(gpus.tables);
  return {gpus.machine, notes};
}

int body(Communicator& world, int argc, char** argv) {
  CommOptions options;
  if (const auto done = parse(argc, argv, world, options)) return *done;
  const double begin = drivers::now_s();
  const Placement here = parallel::find_placement(world);
  log::setup(world.rank(), here.host);
  parallel::together(world, [&] {  // before the work, not after it
    if (world.rank() != 0 || options.out.empty()) return;
    const auto folder = std::filesystem::path(options.out).parent_path();
    io::check_writable_folder(folder.empty() ? "." : folder.string());
  });
  parallel::Watchdog watchdog(options.watchdog_s,
                              fmt::format("[rank {} {}]", world.rank(), here.host));
  const StepBegins step = [&](const char* what) {
    watchdog.beat();
    watchdog.describe([what] { return fmt::format("measuring {}", what); });
  };
  Measured measured = options.device == "cuda" ? on_gpus(world, here, options, step)
                                               : on_host(world, here, options, step);
  step("done");
  plan::Machine& machine = measured.machine;
  machine.name = options.name.empty() ? here.host : options.name;
  if (world.rank() == 0) drivers::print_machine(machine);
  parallel::together(world, [&] {
    if (world.rank() == 0 && !options.out.empty())
      io::write_text_atomic(options.out, drivers::machine_text(machine, measured.notes));
  });
  if (world.rank() == 0) {
    fmt::print(
        "\nRESULT program=tessera-comm ranks={} device={} latency_s={:.4g} bandwidth_b_s={:.4g} "
        "overlap={:.3f} seconds={:.2f} file={}\n",
        world.size(), options.device, machine.intra.latency_s, machine.intra.bandwidth_b_s,
        machine.overlap, drivers::now_s() - begin, options.out.empty() ? "none" : options.out);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return drivers::guarded_main(argc, argv,
                               [&](Communicator& world) { return body(world, argc, argv); });
}
