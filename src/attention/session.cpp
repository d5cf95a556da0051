// SPDX-License-Identifier: Apache-2.0
#include "attention/session.hpp"

#include <stdexcept>

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
      tensors_.emplace(b.name, make_tensor(around_.budget, b.dtype, b.shape, b.name));
  exec::Binding binding;
  binding.external = [this](const plan::Buffer& b) { return tensors_.at(b.name).ref; };
  binding.attributes = [&pass, rank](const plan::Step& s) { return pass.attributes(s, rank); };
  pass.executor_ = std::make_unique<exec::Executor>(plan, binding, around_.registry, around_.comm,
                                                    around_.budget, around_.watchdog);
}

void Session::fill(const Fill& fill) {
  const int rank = around_.comm.rank();
  const Rows q = query_rows(problem_, split_, rank), k = key_rows(problem_, split_, rank);
  for (const char* name : {name::q, name::k, name::v, name::dout, name::sink}) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) continue;
    const std::string_view which = name;
    const bool keys = which == name::k || which == name::v;
    fill(name, which == name::sink ? Rows{} : keys ? k : q, it->second.ref);
  }
}

void Session::release(PreparedPass& pass) { pass.executor_.reset(); }

exec::Measured Session::run(PreparedPass& pass) {
  if (!pass.executor_) throw std::logic_error("Session::run before Session::bind");
  return pass.executor_->run();
}

TensorRef Session::tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? TensorRef{} : it->second.ref;
}

}  // namespace tessera::attention
