// SPDX-License-Identifier: Apache-2.0
// Dependencies from accesses: a step follows every earlier step of another queue whose access to an
// overlapping rectangle of the same buffer conflicts with its own (one of the two writes). Lists of
// earlier accesses are pruned as they grow, so that the cost per step stays about constant.
#include "plan/builder.hpp"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace tessera::plan {

namespace {

bool covers(const Use& a, const Use& b) { return a.d0.covers(b.d0) && a.d1.covers(b.d1); }

}  // namespace

int Builder::queue(QueueKind kind, std::string name) {
  plan_.queues.push_back({kind, std::move(name)});
  last_step_.push_back(-1);
  for (auto& row : waited_) row.push_back(-1);
  waited_.emplace_back(plan_.queues.size(), -1);
  return static_cast<int>(plan_.queues.size()) - 1;
}

int Builder::buffer(Buffer info) {
  plan_.buffers.push_back(std::move(info));
  touches_.emplace_back();
  return static_cast<int>(plan_.buffers.size()) - 1;
}

Use Builder::all(int buffer, Access access) const {
  return rows(buffer, access, {0, plan_.buffers.at(buffer).shape[0]});
}

Use Builder::rows(int buffer, Access access, Range d0) const {
  return part(buffer, access, d0, {0, plan_.buffers.at(buffer).shape[1]});
}

Use Builder::part(int buffer, Access access, Range d0, Range d1) const {
  return {buffer, access, d0, d1};
}

int Builder::compute(int queue, std::string_view label, Index index, Work work,
                     std::vector<Use> uses) {
  Step step;
  step.kind = StepKind::compute;
  step.queue = static_cast<std::int8_t>(queue);
  step.label = label;
  step.index = index;
  step.work = work;
  return add(step, std::move(uses));
}

int Builder::send(int queue, int group, std::string_view label, Index index, int axis, int peer,
                  int key, std::vector<Use> uses) {
  const Comm comm{static_cast<std::int16_t>(axis), peer, key, 0};
  return add_comm(StepKind::send, queue, group, label, index, comm, std::move(uses));
}

int Builder::recv(int queue, int group, std::string_view label, Index index, int axis, int peer,
                  int key, std::vector<Use> uses) {
  const Comm comm{static_cast<std::int16_t>(axis), peer, key, 0};
  return add_comm(StepKind::recv, queue, group, label, index, comm, std::move(uses));
}

int Builder::all_reduce(int queue, std::string_view label, Index index, int axis, int key,
                        std::vector<Use> uses) {
  const Comm comm{static_cast<std::int16_t>(axis), -1, key, 0};
  return add_comm(StepKind::all_reduce, queue, -1, label, index, comm, std::move(uses));
}

int Builder::add_comm(StepKind kind, int queue, int group, std::string_view label, Index index,
                      Comm comm, std::vector<Use> uses) {
  Step step;
  step.kind = kind;
  step.queue = static_cast<std::int8_t>(queue);
  step.group = group;
  step.label = label;
  step.index = index;
  for (const Use& use : uses) {
    check_buffer(label, use);
    comm.bytes += bytes_of(plan_, use);
  }
  step.comm = comm;
  return add(step, std::move(uses));
}

int Builder::add(Step step, std::vector<Use> uses) {
  if (step.queue < 0 || step.queue >= static_cast<int>(last_step_.size())) {
    throw std::logic_error(fmt::format("plan step '{}' names queue {} of {}", step.label,
                                       step.queue, last_step_.size()));
  }
  const auto id = static_cast<std::int32_t>(plan_.steps.size());
  open_unit(step);
  deps_.clear();
  for (const Use& use : uses) collect(step, use);
  if (step.kind == StepKind::all_reduce) follow_messages(step);
  step.first_after = static_cast<std::uint32_t>(plan_.after_pool.size());
  step.num_after = static_cast<std::uint32_t>(deps_.size());
  std::sort(deps_.begin(), deps_.end());
  for (const std::int32_t dep : deps_) {
    auto& waited = waited_[step.queue][plan_.steps[dep].queue];
    waited = std::max(waited, dep);
    plan_.after_pool.push_back(dep);
  }
  step.first_use = static_cast<std::uint32_t>(plan_.use_pool.size());
  step.num_use = static_cast<std::uint32_t>(uses.size());
  plan_.use_pool.insert(plan_.use_pool.end(), uses.begin(), uses.end());
  plan_.steps.push_back(step);
  last_step_[step.queue] = id;
  for (const Use& use : uses) remember(id, use);
  return id;
}

/// Gives the step that is being added its unit: the one of its predecessor, or a new one.
void Builder::open_unit(const Step& step) {
  const std::int32_t last = last_step_[step.queue];
  const bool joins = is_comm(step.kind) && step.group >= 0 && last >= 0 &&
                     is_comm(plan_.steps[last].kind) && plan_.steps[last].group == step.group;
  unit_.push_back(joins ? unit_[last] : num_units_++);
}

void Builder::check_buffer(std::string_view label, const Use& use) const {
  if (use.buffer >= 0 && use.buffer < static_cast<int>(touches_.size())) return;
  throw std::logic_error(
      fmt::format("plan step '{}' uses buffer {} of {}", label, use.buffer, touches_.size()));
}

/// Adds to deps_ what this use has to follow.
void Builder::collect(const Step& step, const Use& use) {
  check_buffer(step.label, use);
  if (use.d0.empty() || use.d1.empty()) return;
  for (const Touch& touch : touches_[use.buffer]) {
    if (!conflict(use, touch.use)) continue;
    if (unit_[touch.step] == unit_.back()) {
      throw std::logic_error(
          fmt::format("plan steps {} '{}' and {} '{}' of one comm group conflict on buffer '{}'",
                      touch.step, plan_.steps[touch.step].label, plan_.steps.size(), step.label,
                      plan_.buffers[use.buffer].name));
    }
    if (plan_.steps[touch.step].queue != step.queue) depend(step, touch.step);
  }
}

/// A rank that waits for the others in a reduction posts no messages: all of its other queues must
/// be done, or those that wait for them would never come.
void Builder::follow_messages(const Step& step) {
  for (std::int32_t i = 0; i < std::ssize(plan_.steps); ++i) {
    const Step& other = plan_.steps[i];
    if (is_comm(other.kind) && other.queue != step.queue &&
        unit_[i] == unit_[last_step_[other.queue]])
      depend(step, i);
  }
}

/// One edge, unless queue order implies it. A member of a unit does not stand for its neighbours:
/// each request of a set completes on its own.
void Builder::depend(const Step& step, std::int32_t on) {
  const std::int8_t queue = plan_.steps[on].queue;
  auto implied_by = [&](std::int32_t later) {
    return later == on || (later > on && unit_[later] != unit_[on]);
  };
  if (implied_by(waited_[step.queue][queue])) return;
  for (const std::int32_t dep : deps_) {
    if (plan_.steps[dep].queue == queue && implied_by(dep)) return;
  }
  std::erase_if(deps_, [&](std::int32_t dep) {
    return plan_.steps[dep].queue == queue && dep < on && unit_[dep] != unit_[on];
  });
  deps_.push_back(on);
}

/// Notes an access and forgets those that it stands for: all that a write covers (it follows them),
/// and earlier reads of the same queue that a read covers.
void Builder::remember(std::int32_t step, const Use& use) {
  if (use.d0.empty() || use.d1.empty()) return;
  auto& touches = touches_[use.buffer];
  std::erase_if(touches, [&](const Touch& old) {
    if (!covers(use, old.use)) return false;
    if (writes(use)) return true;
    return !writes(old.use) && plan_.steps[old.step].queue == plan_.steps[step].queue &&
           (old.step == step || unit_[old.step] != unit_[step]);
  });
  touches.push_back({step, use});
}

}  // namespace tessera::plan
