// SPDX-License-Identifier: Apache-2.0
// What an attention run leaves behind: report.json, results.h5, one RESULT line.
#pragma once

#include <string>
#include <vector>

#include "attention/session.hpp"
#include "drivers/attention/record.hpp"
#include "io/output.hpp"

namespace tessera::drivers {

/// Everything a reader needs to trust the numbers.
struct Conditions {
  attention::Problem problem;
  std::string machine;  ///< name of the model
  std::string machine_file;
  std::string source;  ///< where the inputs came from
  std::string config;  ///< the resolved deck
  std::string mpi;
  std::string device;  ///< what the ranks compute on
  int ranks = 1, hosts = 1, cores = 0;
  bool oversubscribed = false;
  int warmup = 0, repeats = 0;
};

/// VALID, or INVALID with the reasons: errors above their limits, counted bytes unlike the formula.
struct Verdict {
  std::vector<std::string> reasons;
  bool valid() const { return reasons.empty(); }
};
Verdict judge(const std::vector<Record>& records, DType dtype, double max_ratio, double max_abs);

/// The whole report as text. `verdict` is null for plans that were not run.
std::string report_json(const Conditions& c, const std::vector<Record>& records,
                        const Verdict* verdict);

/// "RESULT verdict=VALID ranks=4 ...": one line for grep.
std::string result_line(const Conditions& c, const std::vector<Record>& records,
                        const Verdict& verdict);

/// Writes the tensors of one pass below /runs/<number>/ ; used while the session lives.
void write_tensors(io::OutputFile& file, const std::string& group,
                   const attention::Session& session, const attention::PreparedPass& pass,
                   int rank);

/// Seconds, counters and attributes of all runs. Collective.
void write_records(io::OutputFile& file, const Conditions& c, const std::vector<Record>& records,
                   const Verdict& verdict);

/// "/runs/03 mesh 2x2 forward"
std::string group_of(std::size_t number, const Record& r);

}  // namespace tessera::drivers
