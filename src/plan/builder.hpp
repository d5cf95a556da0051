// SPDX-License-Identifier: Apache-2.0
// Builds one rank's plan. The caller adds steps in an order that would be right one by one; the
// builder derives the cross-queue dependencies from what the steps read and write, so that no
// scheme writes an `after` list by hand. The checker does not trust it: it proves order anew.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

/// Steps of one queue run in the order of the calls. Neighbouring comm steps of a queue with an
/// equal group >= 0 form one unit; other queues' steps may be added in between. Throws
/// std::logic_error on an unknown queue or buffer and on two conflicting uses inside one unit.
class Builder {
 public:
  explicit Builder(Plan& plan) : plan_(plan) {}

  int queue(QueueKind kind, std::string name);
  int buffer(Buffer info);
  /// Use of a whole buffer, of a range of its first dimension, of ranges of the first two.
  Use all(int buffer, Access access) const;
  Use rows(int buffer, Access access, Range d0) const;
  Use part(int buffer, Access access, Range d0, Range d1) const;

  int compute(int queue, std::string_view label, Index index, Work work, std::vector<Use> uses);
  int send(int queue, int group, std::string_view label, Index index, int axis, int peer, int key,
           std::vector<Use> uses);
  int recv(int queue, int group, std::string_view label, Index index, int axis, int peer, int key,
           std::vector<Use> uses);
  /// Waits for all messages of the other queues that were added before it.
  int all_reduce(int queue, std::string_view label, Index index, int axis, int key,
                 std::vector<Use> uses);
  /// A group number not used before.
  int new_group() { return next_group_++; }

 private:
  struct Touch {
    std::int32_t step;
    Use use;
  };
  int add(Step step, std::vector<Use> uses);
  int add_comm(StepKind kind, int queue, int group, std::string_view label, Index index, Comm comm,
               std::vector<Use> uses);
  void check_buffer(std::string_view label, const Use& use) const;
  void open_unit(const Step& step);
  void collect(const Step& step, const Use& use);
  void depend(const Step& step, std::int32_t on);
  void follow_messages(const Step& step);
  void remember(std::int32_t step, const Use& use);

  Plan& plan_;
  std::vector<std::vector<Touch>> touches_;  // per buffer: what a later step may have to follow
  std::vector<std::int32_t> unit_;           // per step: number of its unit, unique in the plan
  std::vector<std::int32_t> last_step_;      // per queue, -1: none
  std::vector<std::vector<std::int32_t>> waited_;  // [queue][queue]: latest step waited for so far
  std::vector<std::int32_t> deps_;                 // of the step being added
  std::int32_t num_units_ = 0;
  int next_group_ = 0;
};

}  // namespace tessera::plan
