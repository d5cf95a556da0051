// SPDX-License-Identifier: Apache-2.0
// A small ring program for the tests of the plan room: every rank multiplies its rows with every
// chunk, which go round the ring through two slots; two sums over all ranks at the end.
#pragma once

#include <string>
#include <vector>

#include "plan/builder.hpp"

namespace tessera::plan::testing {

inline constexpr std::string_view k_tile = "ring.tile";
inline constexpr std::string_view k_move = "ring.move";
inline constexpr std::string_view k_sum = "ring.sum";
inline constexpr int k_rows = 4, k_width = 8;  // of a chunk
inline constexpr std::int64_t k_chunk_bytes = k_rows * k_width * 4;
inline constexpr std::int64_t k_stat_bytes = k_rows * 4;  // one statistic per row goes along

struct RingBuffers {
  int own, own_stat, slots, slot_stats, out;
};

inline RingBuffers add_ring_buffers(Builder& b) {
  RingBuffers id;
  id.own = b.buffer({"own", Role::input, DType::f32, {k_rows, k_width, 1}, false});
  id.own_stat = b.buffer({"own_stat", Role::input, DType::f32, {k_rows, 1, 1}, true});
  id.slots = b.buffer({"slots", Role::scratch, DType::f32, {2 * k_rows, k_width, 1}, false});
  id.slot_stats = b.buffer({"slot_stats", Role::scratch, DType::f32, {2 * k_rows, 1, 1}, true});
  id.out = b.buffer({"out", Role::output, DType::f32, {k_rows, k_width, 1}, false});
  return id;
}

/// Uses of the chunk that is here at shift t (0: the rank's own), data and statistic.
inline std::vector<Use> chunk_at(const Builder& b, const RingBuffers& id, int t, Access access) {
  if (t == 0) return {b.all(id.own, access), b.all(id.own_stat, access)};
  const std::int64_t first = (t - 1) % 2 * k_rows;
  return {b.rows(id.slots, access, {first, first + k_rows}),
          b.rows(id.slot_stats, access, {first, first + k_rows})};
}

/// Plan of one rank; `rounds` turns of the ring, chunk j of round m is number m * n + j.
inline Plan ring_plan(int rank, int n, int rounds) {
  Plan plan;
  Builder b(plan);
  const int compute = b.queue(QueueKind::compute, "compute");
  const int comm = b.queue(QueueKind::comm, "comm");
  const RingBuffers id = add_ring_buffers(b);
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  for (int m = 0; m < rounds; ++m) {
    for (int t = 0; t < n; ++t) {
      const int here = m * n + (rank + n - t) % n;
      if (t + 1 < n) {
        const int group = b.new_group();
        const int coming = m * n + (rank + n - t - 1) % n;
        b.send(comm, group, k_move, chunk(here), 0, next, here, chunk_at(b, id, t, Access::read));
        b.recv(comm, group, k_move, chunk(coming), 0, previous, coming,
               chunk_at(b, id, t + 1, Access::write));
      }
      auto uses = chunk_at(b, id, t, Access::read);
      uses.push_back(b.all(id.out, t == 0 && m == 0 ? Access::write : Access::update));
      b.compute(compute, k_tile, tile(rank, here), {"ring.multiply", 1000, 0}, uses);
    }
  }
  const int sums = b.buffer({"sums", Role::scratch, DType::f64, {2, 3, 1}, false});
  b.compute(compute, "ring.norm", {}, {"ring.norm", 0, 48},
            {b.all(sums, Access::write), b.all(id.out, Access::read)});
  b.all_reduce(comm, k_sum, chunk(0), 0, 0, {b.rows(sums, Access::update, {0, 1})});
  b.all_reduce(comm, k_sum, chunk(1), 0, 1, {b.rows(sums, Access::update, {1, 2})});
  return plan;
}

inline Program ring_program(int n, int rounds = 1) {
  Program program;
  program.name = "ring of " + std::to_string(n);
  Axis axis{"context", {{}}};
  for (int r = 0; r < n; ++r) {
    axis.groups[0].push_back(r);
    program.plans.push_back(ring_plan(r, n, rounds));
    for (int j = 0; j < n * rounds; ++j) program.coverage.push_back({k_tile, tile(r, j)});
  }
  program.axes.push_back(axis);
  return program;
}

/// Is step a complete before step b starts, by following all edges? Slow and obvious: the oracle
/// for the clocks of the checker.
class Reachable {
 public:
  explicit Reachable(const Plan& plan) : plan_(plan), unit_of_(plan.steps.size(), -1) {
    std::vector<int> last(plan.queues.size(), -1);
    for (int s = 0; s < static_cast<int>(plan.steps.size()); ++s) {
      const Step& step = plan.steps[s];
      const int before = last[step.queue];
      const bool joins = before >= 0 && step.group >= 0 && plan.steps[before].group == step.group &&
                         is_comm(step.kind) && is_comm(plan.steps[before].kind);
      if (!joins) {
        units_.push_back({});
        previous_.push_back(before < 0 ? -1 : unit_of_[before]);
      }
      unit_of_[s] = joins ? unit_of_[before] : static_cast<int>(units_.size()) - 1;
      units_[unit_of_[s]].push_back(s);
      last[step.queue] = s;
    }
  }

  bool ordered(int a, int b) const {
    std::vector<bool> seen(units_.size(), false);
    std::vector<int> todo{unit_of_[b]};
    while (!todo.empty()) {
      const int unit = todo.back();
      todo.pop_back();
      if (seen[unit]) continue;
      seen[unit] = true;
      if (const int before = previous_[unit]; before >= 0) {
        if (before == unit_of_[a]) return true;  // the whole unit, so a as well
        todo.push_back(before);
      }
      for (const int s : units_[unit]) {
        for (const int dep : plan_.after(plan_.steps[s])) {
          if (dep == a) return true;
          todo.push_back(unit_of_[dep]);
        }
      }
    }
    return false;
  }

 private:
  const Plan& plan_;
  std::vector<std::vector<int>> units_;  // members
  std::vector<int> previous_;            // per unit
  std::vector<int> unit_of_;             // per step
};

}  // namespace tessera::plan::testing
