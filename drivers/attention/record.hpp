// SPDX-License-Identifier: Apache-2.0
// One line of the report: a scheme in one pass, what its plan says (checked, counted, simulated)
// and, after a run, what was measured. tessera-plan fills the first part only.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/scheme.hpp"
#include "exec/executor.hpp"
#include "plan/simulate.hpp"

namespace tessera::drivers {

struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread_of(std::vector<double> values);

struct MeasuredPart {
  std::vector<std::int64_t> bytes_sent;  ///< counted by the communicator, per rank
  Spread seconds;                        ///< slowest rank of each repeat
  std::vector<double> all_seconds;       ///< one per repeat
  std::vector<double>
      steps;             ///< rank, step, begin, end of the last repeat, rows of 4; zeros off rank 0
  double exposed_s = 0;  ///< largest over ranks, of the median repeat
  double progress_s = 0;        ///< driving transfers inside operators, likewise
  double launch_s = 0;          ///< GPUs: of the host, for starting a run; likewise
  double overlap_share = 0;     ///< of communication time beside compute, least over ranks
  int straggler = -1;           ///< rank that the others wait for; -1: none in particular
  double straggler_ratio = 1;   ///< step time over that without it
  double gflops_per_rank = 0;   ///< unmasked pairs only
  std::int64_t peak_bytes = 0;  ///< largest over ranks, high-water mark of the budget
  std::optional<double> error_ratio, error_max_abs;
  std::string error_worst;
  exec::Backends backends;  ///< of this rank
};

struct Record {
  attention::Scheme scheme;
  int u = 1;
  attention::Layout layout{};
  attention::Pass pass{};
  std::vector<std::int64_t> bytes_plan;     ///< counted in the plan, per rank
  std::vector<std::int64_t> bytes_formula;  ///< by formula, per rank
  std::vector<std::pair<std::string, double>>
      volume_axes;               ///< largest per axis, in units of N D / n
  double volume_u = 0;           ///< largest over ranks, statistics left out
  std::int64_t inter_bytes = 0;  ///< largest over ranks, leaving the node
  double predicted_s = 0;
  double predicted_exposed_s = 0;
  double flops = 0;      ///< of all ranks
  double imbalance = 1;  ///< largest flops of a rank over the mean
  std::int64_t tiles_total = 0, tiles_skipped = 0, bytes_skipped = 0;
  std::int64_t peak_plan = 0;  ///< largest over ranks, scratch and bound buffers
  std::size_t num_steps = 0;
  std::optional<MeasuredPart> measured;

  std::int64_t bytes_max() const;
  bool bytes_agree() const;
};

/// Makes the program, checks it (a fault is a bug of ours: Error(invalid) with the first faults),
/// counts and simulates it. `program` and `times` get both when given.
Record plan_record(const attention::Problem& p, const attention::Scheme& scheme, int n,
                   attention::Pass pass, const plan::Machine& machine,
                   plan::Program* program = nullptr, plan::SimulateResult* times = nullptr);

nlohmann::ordered_json to_json(const Record& r);

/// The table of a terminal: a line per record.
std::string table(const std::vector<Record>& records, bool measured);

}  // namespace tessera::drivers
