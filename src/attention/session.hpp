// SPDX-License-Identifier: Apache-2.0
// One scheme on real ranks: this rank's shard of the tensors, the programs of both passes, and
// their execution. Tensors are found by the names of attention/scheme.hpp.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "attention/scheme.hpp"
#include "exec/executor.hpp"

namespace tessera::attention {

/// What a run needs from the process it lives in.
struct Surroundings {
  parallel::Communicator& comm;
  const ops::Registry& registry;
  Budget& budget;
  parallel::Watchdog* watchdog = nullptr;
  exec::DeviceRun* device = nullptr;  ///< null: host ranks
};

/// Writes rows of an input ("q", "k", "v", "do") into a tensor [rows, heads, dim], converting to
/// its dtype; padding rows become 0. For "sink" rows is ignored. Collective.
using Fill = std::function<void(const std::string& name, const Rows& rows, const TensorRef& out)>;

/// One pass of a scheme, ready to run: its program, the bands of its tiles, its executor.
class PreparedPass {
 public:
  PreparedPass(const Problem& p, const Scheme& s, Pass pass, const plan::Machine& machine,
               Surroundings around);
  const plan::Program& program() const { return program_; }
  Pass pass() const { return context_.pass; }
  const Scheme& scheme() const { return context_.scheme; }
  const Split& split() const { return context_.split; }
  const ChunkMap& map() const { return context_.map; }

 private:
  friend class Session;
  ops::Attributes attributes(const plan::Step& step, int rank);
  Context context_;
  plan::Program program_;
  std::map<plan::Index, std::vector<Band>> bands_;
  std::unique_ptr<exec::Executor> executor_;
};

class Session {
 public:
  Session(const Problem& p, Surroundings around) : problem_(p), around_(around) {}

  /// Makes the program of a pass; nothing is allocated. Call `bind` before `run`.
  PreparedPass& prepare(const Scheme& s, Pass pass, const plan::Machine& machine);
  /// Allocates the tensors that the pass binds and its scratch. Forward first.
  void bind(PreparedPass& pass);
  /// Reads q, k, v, do and sink for this rank.
  void fill(const Fill& fill);
  exec::Measured run(PreparedPass& pass);
  /// The same with the times of all steps.
  exec::Measured profile(PreparedPass& pass);
  /// Frees the scratch of a pass that is not run any more; its tensors stay.
  void release(PreparedPass& pass);

  /// A bound tensor in host memory, null data if there is none of this name. Of a device tensor it
  /// is a copy made by this call, which the next call for the same name writes over.
  TensorRef tensor(const std::string& name) const;
  const Problem& problem() const { return problem_; }

 private:
  Space space() const { return around_.device ? Space::cuda : Space::host; }
  exec::Executor& executor_of(PreparedPass& pass) const;

  Problem problem_;
  Surroundings around_;
  Split split_;
  std::map<std::string, Tensor> tensors_;
  mutable Budget copies_budget_;  // apart: the budget of the run is that of the device
  mutable std::map<std::string, Tensor> copies_;
  std::map<Pass, std::unique_ptr<PreparedPass>> passes_;
};

}  // namespace tessera::attention
