// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/experiment.hpp"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "attention/self_check.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "base/version.hpp"
#include "drivers/attention/bench.hpp"
#include "drivers/attention/deck.hpp"
#include "drivers/attention/device.hpp"
#include "drivers/attention/inputs.hpp"
#include "drivers/attention/machine.hpp"
#include "drivers/attention/output.hpp"
#include "drivers/common/command_line.hpp"
#include "drivers/common/flags.hpp"
#include "drivers/common/main.hpp"
#include "io/file_system.hpp"
#include "kernels/cuda/register.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"
#include "plan/export.hpp"
#include "trace/chrome.hpp"

namespace tessera::drivers {

namespace {

using attention::Pass;

/// Free memory of this host in bytes, 0 when it cannot be told.
std::int64_t memory_available() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::int64_t kib = 0;
  while (file >> key) {
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
    file.ignore(256, '\n');
  }
  return 0;
}

class Experiment {
 public:
  Experiment(const Flags& flags, const config::Config& config, parallel::Communicator& world)
      : flags_(flags),
        config_(config),
        world_(world),
        place_(parallel::find_placement(world)),
        inputs_(config, world),
        start_(std::chrono::steady_clock::now()) {}

  int run() {
    device_.emplace(config_, world_, place_);
    parallel::together(world_, [&] { prepare(); });
    agree_on_mask();
    if (const std::string kind = inputs_.mask_kind();
        root() && !kind.empty() && kind != problem_.mask.kind())
      log::warn("input.file was made for mask '{}', attention.mask = \"{}\" is used", kind,
                problem_.mask.kind());
    if (root() && device_->run() && config_.text("machine.file").empty())
      log::warn(
          "machine.file is empty: predictions are those of host cores, not of these GPUs; "
          "tessera-comm --device cuda --out FILE measures them");
    inputs_.check(problem_, wants(Pass::backward));
    parallel::together(world_, [&] { plan_all(); });
    parallel::together(world_, [&] { check_memory(); });
    if (flags_.print_plan) print_plan();
    if (flags_.check) return finish_check();
    parallel::together(world_, [&] { check_outputs(); });
    banner();
    execute();
    return finish();
  }

 private:
  std::string results_path() const { return flags_.out + "/results.h5"; }
  bool root() const { return world_.rank() == 0; }
  bool wants(Pass p) const { return std::find(passes_.begin(), passes_.end(), p) != passes_.end(); }

  void prepare() {
    const std::int64_t context = config_.integer("parallel.context");
    if (context != 0 && context != world_.size())
      throw config_.error("parallel.context",
                          fmt::format("but {} ranks were started", world_.size()),
                          fmt::format("start {} ranks, or set it to 0", context));
    problem_ = make_problem(config_, inputs_.mask_arrays());
    schemes_ = make_schemes(config_, problem_, world_.size());
    passes_ = make_passes(config_);
    machine_ = load_machine(config_.text("machine.file"));
    budget_ = Budget(config_.integer("parallel.memory"));
    kernels::register_reference(registry_);
    kernels::register_kokkos(registry_);
    if (device_->run()) kernels::register_cuda(registry_, budget_);
    for (const std::string& pin : config_.texts("ops.pin")) {
      const std::size_t at = pin.find('=');
      if (at == std::string::npos)
        throw config_.error("ops.pin", fmt::format("holds '{}', which is no operator=backend", pin),
                            "write attention.forward=reference");
      registry_.pin(pin.substr(0, at), pin.substr(at + 1));
    }
    registry_.set_deterministic(config_.boolean("ops.deterministic"));
    registry_.set_autotune(config_.boolean("ops.autotune"));
    attention::check_lse(registry_, problem_.dtype, device_->space());
  }

  /// Masks decide which messages exist: ranks that differ would wait for each other for ever.
  void agree_on_mask() {
    const auto mine = static_cast<std::int64_t>(problem_.mask.hash() >> 1);
    const std::vector<std::int64_t> all = world_.all_gather(mine);
    for (std::size_t r = 1; r < all.size(); ++r)
      if (all[r] != all[0])
        throw parallel::AgreedError(Exit::usage,
                                    fmt::format("attention.mask: rank {} has another mask than "
                                                "rank 0 (hash {:016x} against {:016x})",
                                                r, all[r], all[0]),
                                    "every rank must read the same deck and the same /mask arrays; "
                                    "check that input.file is one "
                                    "file on a shared file system");
  }

  void plan_all() {
    for (const attention::Scheme& s : schemes_)
      for (Pass pass : {Pass::forward, Pass::backward})
        if (wants(pass))
          records_.push_back(plan_record(problem_, s, world_.size(), pass, machine_));
  }

  void check_memory() {
    std::int64_t need = 0;
    for (const Record& r : records_) need = std::max(need, r.peak_plan);
    std::int64_t have = config_.integer("parallel.memory");
    const bool gpu = device_->run() != nullptr;
    if (have == 0)
      have = gpu ? device_->memory_per_rank() : memory_available() / place_.ranks_on_host;
    if (have > 0 && need > have)
      throw Error(
          Exit::environment,
          fmt::format(
              "the plans need up to {} on a rank, there are {} for each of the {} ranks of {} {}",
              units::format_bytes(static_cast<double>(need)),
              units::format_bytes(static_cast<double>(have)),
              gpu ? device_->ranks_on_device() : place_.ranks_on_host,
              gpu ? "a GPU of host" : "host", place_.host),
          "use more ranks or hosts, a shorter attention.sequence, attention.dtype = \"bf16\" or "
          "\"f16\", or a scheme that caches less (ring); parallel.memory overrides the limit");
  }

  /// Before the work, which may take hours.
  void check_outputs() const {
    if (!root()) return;
    io::check_writable_folder(flags_.out);
    for (const std::string& file : {flags_.json, flags_.trace}) {
      if (file.empty()) continue;
      const auto folder = std::filesystem::path(file).parent_path();
      io::check_writable_folder(folder.empty() ? "." : folder.string());
    }
  }

  void print_plan() {
    plan::Program program;
    plan_record(problem_, schemes_.front(), world_.size(), passes_.front(), machine_, &program);
    if (root()) fmt::print("plan of rank 0, {}\n{}", program.name, plan::table_of(program, 0));
  }

  int finish_check() {
    if (root())
      fmt::print("{}checked: {} plan{} without a fault, bytes equal to the formulas\n",
                 table(records_, false), records_.size(), records_.size() == 1 ? "" : "s");
    return 0;
  }

  void banner() {
    if (!root()) return;
    const double fraction =
        static_cast<double>(problem_.mask.area()) /
        (static_cast<double>(problem_.mask.rows()) * static_cast<double>(problem_.mask.cols()));
    fmt::print("{}\n", version_line());
    fmt::print("{:<12} {}\n", "problem", shape_text(problem_));
    fmt::print("{:<12} {}, {:.1f} % of all pairs visible; layout {}; {}\n", "mask",
               problem_.mask.kind(), 100 * fraction, attention::name_of(problem_.layout),
               name_of(problem_.dtype));
    fmt::print(
        "{:<12} {} on {} host{} with {} cores{}\n", "ranks", world_.size(), place_.num_hosts,
        place_.num_hosts > 1 ? "s" : "", place_.cores_on_host,
        place_.oversubscribed ? ", oversubscribed: times are no measure of the schemes" : "");
    fmt::print("{:<12} {}\n", "device", device_->text());
    if (device_->shared() && world_.size() > 1)
      fmt::print("{:<12} ranks share a GPU: times are no measure of the schemes\n", "");
    fmt::print("{:<12} {}; machine model {}\n\n", "input", inputs_.source(), machine_.name);
    std::fflush(stdout);
  }

  void execute() {
    const attention::Surroundings host{world_, registry_, host_budget_};
    attention::Fill fill =
        inputs_.fill(problem_, std::max(1, place_.cores_on_host / place_.ranks_on_host));
    if (device_->run()) fill = remembered(std::move(fill), world_);
    attention::Reference reference;
    const bool verify = config_.boolean("verify.enabled") && !flags_.dry_run;
    if (verify) {
      if (root()) log::info("fp64 reference over {} pairs ...", problem_.mask.area());
      reference = attention::make_reference(problem_, fill, host, wants(Pass::backward));
    }
    // From here on work comes in steps; the reference before may take minutes in one piece.
    parallel::Watchdog watchdog(flags_.watchdog_s,
                                fmt::format("rank {} on {}", world_.rank(), place_.host));
    const attention::Surroundings watched{world_, registry_, budget_, &watchdog, device_->run()};
    BenchOptions options;
    options.warmup = flags_.dry_run ? 0 : static_cast<int>(config_.integer("run.warmup"));
    options.repeats = flags_.dry_run ? 1 : static_cast<int>(config_.integer("run.repeats"));
    options.timeline = &timeline_;
    if (config_.boolean("output.tensors")) {
      output_.emplace(world_, results_path());
      options.keep = [&](const attention::Session& s, const attention::PreparedPass& p,
                         const Record& r) {
        write_tensors(*output_, group_of(static_cast<std::size_t>(&r - records_.data()), r), s, p,
                      world_.rank());
      };
    }
    for (std::size_t i = 0; i < schemes_.size(); ++i) {
      if (out_of_time()) return;
      std::vector<Record*> mine;
      for (std::size_t k = 0; k < passes_.size(); ++k)
        mine.push_back(&records_[i * passes_.size() + k]);
      if (root()) log::info("{} of {}: {}", i + 1, schemes_.size(), schemes_[i].text());
      bench_scheme(problem_, schemes_[i], machine_, fill, watched, verify ? &reference : nullptr,
                   options, mine);
    }
  }

  /// Agreed by all ranks: a signal reaches them at different times.
  bool out_of_time() {
    const double spent =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    const bool mine = stop_requested() || (flags_.time_limit_s > 0 && spent > flags_.time_limit_s);
    stopped_ = world_.all_reduce_max(std::int64_t{mine}) > 0;
    return stopped_;
  }

  Conditions conditions() const {
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(library, &length);
    const std::string mpi(library, static_cast<std::size_t>(length));
    return {problem_,
            machine_.name,
            config_.text("machine.file"),
            inputs_.source(),
            config::print_config(config_),
            mpi.substr(0, mpi.find_first_of(",\n")),
            device_->text(),
            world_.size(),
            place_.num_hosts,
            place_.cores_on_host,
            place_.oversubscribed,
            static_cast<int>(config_.integer("run.warmup")),
            static_cast<int>(config_.integer("run.repeats"))};
  }

  int finish() {
    Verdict verdict = judge(records_, problem_.dtype, config_.real("verify.max_ratio"),
                            config_.real("verify.max_abs"));
    if (stopped_)
      verdict.reasons.push_back("stopped before all schemes were run (time limit or signal)");
    const Conditions c = conditions();
    if (!output_) output_.emplace(world_, results_path());
    write_records(*output_, c, records_, verdict);
    output_->commit();
    parallel::together(world_, [&] {
      if (!root()) return;
      const std::string json = flags_.json.empty() ? flags_.out + "/report.json" : flags_.json;
      io::write_text_atomic(json, report_json(c, records_, &verdict));
      timeline_.title = c.problem.mask.kind() + " attention, " + shape_text(c.problem);
      trace::write_chrome_file(timeline_,
                               flags_.trace.empty() ? flags_.out + "/trace.json" : flags_.trace);
    });
    if (root()) {
      fmt::print("{}", table(records_, true));
      for (const std::string& reason : verdict.reasons) fmt::print("INVALID: {}\n", reason);
      fmt::print("{}\n", result_line(c, records_, verdict));
    }
    if (stopped_) return static_cast<int>(Exit::requeue);
    return static_cast<int>(verdict.valid() ? Exit::ok : Exit::invalid);
  }

  const Flags& flags_;
  const config::Config& config_;
  parallel::Communicator& world_;
  const parallel::Placement place_;
  AttentionInputs inputs_;
  const std::chrono::steady_clock::time_point start_;
  attention::Problem problem_;
  std::vector<attention::Scheme> schemes_;
  std::vector<Pass> passes_;
  plan::Machine machine_;
  std::optional<DeviceSetup> device_;
  Budget budget_, host_budget_;  // of the run, and of the fp64 reference
  ops::Registry registry_;       // may keep memory of the budget
  std::vector<Record> records_;
  trace::Timeline timeline_;
  std::optional<io::OutputFile> output_;
  bool stopped_ = false;
};

}  // namespace

int run_attention(int argc, char** argv, parallel::Communicator& world) {
  Flags flags;
  CLI::App app(
      "Exact attention over a sequence split across MPI ranks: ring, double ring, all-gather, "
      "Ulysses, mesh and "
      "unified, forward and backward, with any mask.",
      "tessera-attention");
  add_flags(app, flags);
  if (const auto done = parse_command_line(app, argc, argv, world)) return *done;
  log::setup(world.rank(), parallel::host_name());
  const config::Table keys = attention_table();
  if (flags.keys) {
    if (world.rank() == 0)
      fmt::print("{}", config::reference_page(keys, "Keys of attention decks"));
    return 0;
  }
  const config::Config config = load_deck(keys, flags, world);
  if (flags.print_config) {
    if (world.rank() == 0) fmt::print("{}", config::print_config(config));
    return 0;
  }
  return Experiment(flags, config, world).run();
}

}  // namespace tessera::drivers
