// SPDX-License-Identifier: Apache-2.0
// The one executor: walks a rank's plan, runs its work through the operator registry and its
// transfers through the communicator or a device transport. It knows no scheme, no backend and no
// configuration. On the host it keeps requests moving while operators compute (they call back
// between sub-tiles); on a device it puts the whole plan on streams and waits once.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "memory/buffer.hpp"
#include "memory/stream.hpp"
#include "ops/registry.hpp"
#include "parallel/communicator.hpp"
#include "parallel/transport.hpp"
#include "parallel/watchdog.hpp"
#include "plan/plan.hpp"

namespace tessera::exec {

/// What a plan leaves to its caller.
struct Binding {
  /// Tensor of a buffer whose role is not scratch; shape and dtype must be those of the buffer, and
  /// no two share memory.
  std::function<TensorRef(const plan::Buffer&)> external;
  /// Attributes of a compute step; spans in them must outlive the executor. Empty: none.
  std::function<ops::Attributes(const plan::Step&)> attributes;
};

/// How plans run on a GPU; scratch and bound tensors are device memory then. Its streams serve one
/// executor after the other. Operators may keep working memory by the shape of a call (cuDNN does),
/// so calls of one shape must not stand on two compute queues. profile() runs all steps whole.
struct DeviceRun {
  /// Null: transfers are left out, to see what the compute steps alone take.
  parallel::Transport* transport = nullptr;
  /// From the second run on a pass is one launch of a captured graph.
  bool graph = true;
  /// A compute step of so many flops runs as two halves side by side where its operator can be cut
  /// (Implementation::cut), and shorter ones beside it. Of short tiles the second start costs what
  /// the idle end would.
  double two_lanes_from = 8e10;
  /// By number of the queue of its kind, `second` being second lanes; grown on demand.
  std::deque<memory::Stream> compute{}, second{}, comm{};
};

struct Span {
  double begin_s = 0, end_s = 0;  ///< since the start of the run on this rank
};

/// Operator -> backend -> compute steps of this rank that run on it.
using Backends = std::map<std::string, std::map<std::string, int>>;

/// One run of a plan on this rank.
struct Measured {
  std::int64_t start_ns = 0;  ///< steady clock of this rank; offsets: exec/clock.hpp
  double seconds = 0;     ///< on a device: between events before the first and after the last step
  double compute_s = 0;   ///< inside operators, progress of transfers taken out
  double progress_s = 0;  ///< host: driving transfers from inside operators
  double exposed_s = 0;   ///< transfers were outstanding while no compute step could run or ran
  double launch_s = 0;    ///< device: time of the host for putting the run on the streams
  std::vector<Span> steps;                   ///< by step; empty when the run was not looked into
  std::shared_ptr<const Backends> backends;  ///< what ran the compute steps
};

class Executor {
 public:
  /// Allocates scratch from the budget and resolves every operator once. With `device`, and where
  /// the registry asks for autotune, it is collective. Autotune runs backends on the plan's
  /// buffers: what the plan itself writes before it reads holds anything afterwards, all else is
  /// kept. On a device every compute step runs once, so that what steps write holds anything
  /// afterwards. Error(environment) when no backend supports a call; std::logic_error when the plan
  /// and the binding do not fit.
  Executor(const plan::Plan& plan, const Binding& binding, const ops::Registry& registry,
           parallel::Communicator& comm, Budget& budget, parallel::Watchdog* watchdog = nullptr,
           DeviceRun* device = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Runs the plan once; may be called again and again.
  Measured run();
  /// The same with the times of all steps; on a device an event on both sides of each.
  Measured profile();
  /// Who runs the compute steps; a clearing that is left out is not counted.
  const Backends& backends() const { return *backends_; }

 private:
  struct Prepared;
  class Host;
  class Device;
  std::unique_ptr<Prepared> prepared_;
  std::unique_ptr<Device> device_;
  std::shared_ptr<const Backends> backends_;
};

}  // namespace tessera::exec
