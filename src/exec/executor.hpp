// SPDX-License-Identifier: Apache-2.0
// The one executor: walks a rank's plan, runs compute steps through the operator registry, posts
// transfers through the communicator, and keeps transfers moving while operators compute (they
// call back between sub-tiles). It knows no scheme, no backend and no configuration.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/buffer.hpp"
#include "ops/registry.hpp"
#include "parallel/communicator.hpp"
#include "parallel/watchdog.hpp"
#include "plan/plan.hpp"

namespace tessera::exec {

/// What a plan leaves to its caller.
struct Binding {
  /// Tensor of a buffer whose role is not scratch; shape and dtype must be those of the buffer.
  std::function<TensorRef(const plan::Buffer&)> external;
  /// Attributes of a compute step; spans in them must outlive the executor. Empty: none.
  std::function<ops::Attributes(const plan::Step&)> attributes;
};

struct Span {
  double begin_s = 0, end_s = 0;  ///< since the start of the run on this rank
};

/// One run of a plan on this rank.
struct Measured {
  std::int64_t start_ns = 0;  ///< steady clock of this rank; offsets: exec/clock.hpp
  double seconds = 0;
  double compute_s = 0;   ///< inside operators, progress of transfers taken out
  double progress_s = 0;  ///< driving transfers from inside operators
  double exposed_s = 0;   ///< no compute step could run while transfers were outstanding
  std::vector<Span> steps;
};

class Executor {
 public:
  /// Allocates scratch from the budget and resolves every operator once. Error(environment) when
  /// no backend supports a call; std::logic_error when the plan and the binding do not fit.
  Executor(const plan::Plan& plan, const Binding& binding, const ops::Registry& registry,
           parallel::Communicator& comm, Budget& budget, parallel::Watchdog* watchdog = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Runs the plan once; may be called again and again.
  Measured run();

 private:
  class Run;
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace tessera::exec
