// SPDX-License-Identifier: Apache-2.0
#include "exec/executor.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "exec/device.hpp"
#include "exec/host.hpp"
#include "exec/prepared.hpp"

namespace tessera::exec {

Executor::Prepared::Prepared(const plan::Plan& p, const Binding& binding, const ops::Registry& r,
                             parallel::Communicator& c, Budget& budget, parallel::Watchdog* w,
                             Space space)
    : plan(p),
      registry(r),
      comm(c),
      watchdog(w),
      calls(p.steps.size()),
      chosen(p.steps.size()),
      parts(p.steps.size()) {
  bind_buffers(binding, budget, space);
  sort_steps();
  for (std::size_t i = 0; i < p.steps.size(); ++i) prepare_step(i, binding);
}

void Executor::Prepared::bind_buffers(const Binding& binding, Budget& budget, Space space) {
  for (const plan::Buffer& b : plan.buffers) {
    if (b.role == plan::Role::scratch) {
      scratch.emplace_back(budget, b.bytes(), b.name, space);
      tensors.push_back(dense(scratch.back().data(), b.dtype, b.shape, space));
      continue;
    }
    tensors.push_back(binding.external(b));
    const TensorRef& t = tensors.back();
    if (t.dtype != b.dtype || t.shape != b.shape || t.space != space)
      throw std::logic_error(
          fmt::format("buffer {}: bound tensor has another shape, dtype or space", b.name));
  }
}

void Executor::Prepared::sort_steps() {
  for (std::size_t q = 0; q < plan.queues.size(); ++q)
    queues.push_back({static_cast<int>(q), plan.queues[q].kind == plan::QueueKind::comm, {}, {}});
  for (std::size_t i = 0; i < plan.steps.size(); ++i) {
    const plan::Step& s = plan.steps[i];
    QueueSteps& q = queues[static_cast<std::size_t>(s.queue)];
    if (!q.comm) compute.push_back(static_cast<std::int32_t>(i));
    const bool joins = s.group >= 0 && !q.steps.empty() && step(q.steps.back()).group == s.group;
    q.steps.push_back(static_cast<std::int32_t>(i));
    if (joins)
      q.units.back().end = q.steps.size();
    else
      q.units.push_back({q.steps.size() - 1, q.steps.size()});
  }
}

void Executor::Prepared::prepare_step(std::size_t i, const Binding& binding) {
  const plan::Step& s = plan.steps[i];
  if (s.kind != plan::StepKind::compute && s.kind != plan::StepKind::copy) {
    for (const plan::Use& use : plan.uses(s)) {
      parts[i].push_back(tensor(use));
      if (!parts[i].back().contiguous())
        throw std::logic_error(fmt::format("step {} {}: a message part with gaps", i, s.label));
    }
    return;
  }
  ops::Call& call = calls[i];
  call.name = s.work.op;
  for (const plan::Use& use : plan.uses(s)) call.args.push_back(tensor(use));
  if (binding.attributes) call.attributes = binding.attributes(s);
  call.progress = [this] {
    if (running) running->progress();
  };
  chosen[i] = &registry.choose(call);
}

Backends Executor::Prepared::backends() const {
  Backends out;
  for (std::size_t i = 0; i < chosen.size(); ++i)
    if (chosen[i] && !skipped[i]) ++out[chosen[i]->op][chosen[i]->backend];
  return out;
}

Executor::Executor(const plan::Plan& plan, const Binding& binding, const ops::Registry& registry,
                   parallel::Communicator& comm, Budget& budget, parallel::Watchdog* watchdog,
                   DeviceRun* device)
    : prepared_(std::make_unique<Prepared>(plan, binding, registry, comm, budget, watchdog,
                                           device ? Space::cuda : Space::host)) {
  if (device) {
    device_ = std::make_unique<Device>(*prepared_, *device, budget);
  } else {
    prepared_->tune();
    prepared_->fuse();
  }
  backends_ = std::make_shared<Backends>(prepared_->backends());
}

Executor::~Executor() = default;

Measured Executor::run() {
  Measured out = device_ ? device_->run(false) : Host(*prepared_).execute();
  out.backends = backends_;
  return out;
}

Measured Executor::profile() {
  Measured out = device_ ? device_->run(true) : Host(*prepared_).execute();
  out.backends = backends_;
  return out;
}

}  // namespace tessera::exec
