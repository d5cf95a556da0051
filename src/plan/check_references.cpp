// SPDX-License-Identifier: Apache-2.0
// Rule "bad reference": every index names something that exists, so that later rules need no
// guards.
#include <algorithm>

#include <fmt/format.h>

#include "plan/check_rules.hpp"

namespace tessera::plan {

namespace {

/// Checks one rank; `groups` holds the group of every rank, per axis.
class References {
 public:
  References(const Program& program, FaultList& faults) : program_(program), faults_(faults) {
    for (const Axis& axis : program.axes) groups_.push_back(check_axis(axis));
  }

  void check_rank(int rank) {
    const Plan& plan = program_.plans[rank];
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      check_step(rank, static_cast<int>(s), plan, plan.steps[s]);
    }
  }

 private:
  void bad(int rank, int step, const std::string& what) {
    faults_.add(fault::bad_reference, rank, step, [&] {
      return step < 0 ? what : fmt::format("{}: {}", describe(program_, rank, step), what);
    });
  }

  std::vector<std::int32_t> check_axis(const Axis& axis) {
    std::vector<std::int32_t> group_of(program_.plans.size(), -1);
    for (std::size_t g = 0; g < axis.groups.size(); ++g) {
      for (const std::int32_t rank : axis.groups[g]) {
        if (rank < 0 || rank >= static_cast<int>(group_of.size())) {
          bad(-1, -1,
              fmt::format("axis '{}' names rank {} of {}", axis.name, rank, group_of.size()));
        } else if (group_of[rank] >= 0) {
          bad(rank, -1, fmt::format("axis '{}' holds rank {} twice", axis.name, rank));
        } else {
          group_of[rank] = static_cast<std::int32_t>(g);
        }
      }
    }
    return group_of;
  }

  void check_step(int rank, int s, const Plan& plan, const Step& step) {
    if (step.queue < 0 || step.queue >= static_cast<int>(plan.queues.size())) {
      bad(rank, s, fmt::format("queue {} of {}", step.queue, plan.queues.size()));
    }
    if (std::size_t{step.first_after} + step.num_after > plan.after_pool.size() ||
        std::size_t{step.first_use} + step.num_use > plan.use_pool.size()) {
      return bad(rank, s, "list of waits or uses beyond its pool");
    }
    for (const std::int32_t dep : plan.after(step)) {
      if (dep < 0 || dep >= s) bad(rank, s, fmt::format("waits for step {}, not before it", dep));
    }
    for (const Use& use : plan.uses(step)) check_use(rank, s, plan, use);
    if (is_comm(step.kind)) check_comm(rank, s, step);
  }

  void check_use(int rank, int s, const Plan& plan, const Use& use) {
    if (use.buffer < 0 || use.buffer >= static_cast<int>(plan.buffers.size())) {
      return bad(rank, s, fmt::format("buffer {} of {}", use.buffer, plan.buffers.size()));
    }
    const Buffer& buffer = plan.buffers[use.buffer];
    auto outside = [](Range r, std::int64_t size) {
      return r.begin < 0 || r.end > size || r.begin > r.end;
    };
    if (outside(use.d0, buffer.shape[0]) || outside(use.d1, buffer.shape[1])) {
      bad(rank, s,
          fmt::format("range [{},{}) x [{},{}) outside buffer '{}' of {} x {}", use.d0.begin,
                      use.d0.end, use.d1.begin, use.d1.end, buffer.name, buffer.shape[0],
                      buffer.shape[1]));
    }
  }

  void check_comm(int rank, int s, const Step& step) {
    const Comm& comm = step.comm;
    if (comm.axis < 0 || comm.axis >= static_cast<int>(program_.axes.size())) {
      return bad(rank, s, fmt::format("axis {} of {}", comm.axis, program_.axes.size()));
    }
    const auto& group_of = groups_[comm.axis];
    const std::string& axis = program_.axes[comm.axis].name;
    if (group_of[rank] < 0) return bad(rank, s, fmt::format("rank is not on axis '{}'", axis));
    if (step.kind == StepKind::all_reduce) return;
    if (comm.peer < 0 || comm.peer >= static_cast<int>(program_.plans.size())) {
      bad(rank, s, fmt::format("peer {} of {} ranks", comm.peer, program_.plans.size()));
    } else if (comm.peer == rank) {
      bad(rank, s, "a message to the rank itself");
    } else if (group_of[comm.peer] != group_of[rank]) {
      bad(rank, s, fmt::format("peer {} is not in the rank's group of axis '{}'", comm.peer, axis));
    }
  }

  const Program& program_;
  FaultList& faults_;
  std::vector<std::vector<std::int32_t>> groups_;  // per axis, per rank
};

}  // namespace

void check_references(const Program& program, FaultList& faults) {
  References references(program, faults);
  for (std::size_t r = 0; r < program.plans.size(); ++r) {
    references.check_rank(static_cast<int>(r));
  }
}

}  // namespace tessera::plan
