// SPDX-License-Identifier: Apache-2.0
#include "attention/session.hpp"

#include <stdexcept>

#include "memory/cuda.hpp"

namespace tessera::attention {

PreparedPass::PreparedPass(const Problem& p, const Scheme& s, Pass pass,
                           const plan::Machine& machine, Surroundings around)
    : context_(p, s, around.comm.size(), pass),
      program_(make_program(p, s, around.comm.size(), pass, machine)) {}

ops::Attributes PreparedPass::attributes(const plan::Step& step, int rank) {
  ops::Attributes out;
  if (step.index.kind != plan::Index::Kind::tile) return out;
  auto [at, inserted] = bands_.try_emplace(step.index);
  if (inserted) {
    const auto [q, k] = tile_rows(context_, rank, step.index);
    at->second = context_.problem.mask.cut(q, k);
  }
  out.mask = at->second;
  out.scale = context_.problem.scale_factor();
  out.softcap = context_.problem.softcap;
  return out;
}

PreparedPass& Session::prepare(const Scheme& s, Pass pass, const plan::Machine& machine) {
  auto& slot = passes_[pass];
  slot = std::make_unique<PreparedPass>(problem_, s, pass, machine, around_);
  split_ = slot->split();
  return *slot;
}

void Session::bind(PreparedPass& pass) {
  const int rank = around_.comm.rank();
  const plan::Plan& plan = pass.program_.plans[static_cast<std::size_t>(rank)];
  for (const plan::Buffer& b : plan.buffers)
    if (b.role != plan::Role::scratch && !tensors_.contains(b.name))
      tensors_.emplace(b.name, make_tensor(around_.budget, b.dtype, b.shape, b.name, space()));
  exec::Binding binding;
  binding.external = [this](const plan::Buffer& b) { return tensors_.at(b.name).ref; };
  binding.attributes = [&pass, rank](const plan::Step& s) { return pass.attributes(s, rank); };
  pass.executor_ =
      std::make_unique<exec::Executor>(plan, binding, around_.registry, around_.comm,
                                       around_.budget, around_.watchdog, around_.device);
}

void Session::fill(const Fill& fill) {
  const int rank = around_.comm.rank();
  const Rows q = query_rows(problem_, split_, rank), k = key_rows(problem_, split_, rank);
  for (const char* name : {name::q, name::k, name::v, name::dout, name::sink}) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) continue;
    const std::string_view which = name;
    const bool keys = which == name::k || which == name::v;
    const Rows& rows = which == name::sink ? Rows{} : keys ? k : q;
    const TensorRef& to = it->second.ref;
    if (to.space == Space::host) {
      fill(name, rows, to);
      continue;
    }
    Budget budget;
    const Tensor from = make_tensor(budget, to.dtype, to.shape, name);
    fill(name, rows, from.ref);
    memory::copy(to.data, from.ref.data, from.buffer.bytes());
    memory::synchronize();
  }
}

void Session::release(PreparedPass& pass) { pass.executor_.reset(); }

exec::Executor& Session::executor_of(PreparedPass& pass) const {
  if (!pass.executor_) throw std::logic_error("a pass is run before Session::bind");
  return *pass.executor_;
}

exec::Measured Session::run(PreparedPass& pass) { return executor_of(pass).run(); }

exec::Measured Session::profile(PreparedPass& pass) { return executor_of(pass).profile(); }

TensorRef Session::tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return {};
  const TensorRef& from = it->second.ref;
  if (from.space == Space::host) return from;
  auto [copy, inserted] = copies_.try_emplace(name);
  if (inserted) copy->second = make_tensor(copies_budget_, from.dtype, from.shape, name);
  memory::copy(copy->second.ref.data, from.data, it->second.buffer.bytes());
  memory::synchronize();
  return copy->second.ref;
}

}  // namespace tessera::attention
