// SPDX-License-Identifier: Apache-2.0
// Everything about a plan that stays the same from run to run, for host and device runs alike.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/executor.hpp"

namespace tessera::exec {

/// Steps [begin, end) of a queue's list that start and complete together; one compute step is a
/// unit of its own.
struct Unit {
  std::size_t begin, end;
};

struct QueueSteps {
  int queue = 0;
  bool comm = false;
  std::vector<std::int32_t> steps;
  std::vector<Unit> units;
};

struct Executor::Prepared {
  Prepared(const plan::Plan& plan, const Binding& binding, const ops::Registry& registry,
           parallel::Communicator& comm, Budget& budget, parallel::Watchdog* watchdog, Space space);

  const plan::Plan& plan;
  const ops::Registry& registry;
  parallel::Communicator& comm;
  parallel::Watchdog* watchdog;
  std::vector<Buffer> scratch;
  std::vector<TensorRef> tensors;                  ///< by buffer
  std::vector<ops::Call> calls;                    ///< by step; empty name for transfers
  std::vector<const ops::Implementation*> chosen;  ///< by step
  std::vector<std::vector<TensorRef>> parts;       ///< by step: what a transfer carries
  std::vector<QueueSteps> queues;                  ///< as Plan::queues
  std::vector<std::int32_t> compute;               ///< steps of compute queues, in order
  std::vector<char> skipped;  ///< by step: a clearing that the next step makes needless, see fuse()
  Host* running = nullptr;    ///< the host run under way

  /// Measures backends and chooses the fastest of every operator, where the registry asks for it.
  /// Calls must have their streams. Collective.
  void tune();
  Backends backends() const;
  /// Leaves out what operators can do on the way: see fuse_clearings and fuse_stores.
  void fuse();

  const plan::Step& step(std::int32_t i) const { return plan.steps[static_cast<std::size_t>(i)]; }
  /// The same on both sides of a message.
  static std::int64_t tag_of(const plan::Step& s) {
    return std::int64_t{s.comm.key} * 16 + s.comm.axis;
  }

 private:
  /// Leaves out steps that clear buffers (tensor.zero, attention.reset) which the next step to
  /// touch them, on the same queue, writes whole; that step is told (Attributes::fresh).
  void fuse_clearings();
  /// Takes rows out of copies of partial outputs which the last step to touch them, on the same
  /// queue, can round to where they go (stores_of); that step is told (Attributes::store).
  void fuse_stores();
  void bind_buffers(const Binding& binding, Budget& budget, Space space);
  void sort_steps();
  void prepare_step(std::size_t i, const Binding& binding);
  TensorRef tensor(const plan::Use& use) const {
    return tensors[static_cast<std::size_t>(use.buffer)].slice(use.d0, use.d1);
  }
};

}  // namespace tessera::exec
