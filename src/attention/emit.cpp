// SPDX-License-Identifier: Apache-2.0
#include "attention/emit.hpp"

#include <fmt/format.h>

namespace tessera::attention {

using plan::Access;
using plan::Role;
using plan::Use;

Emit::Emit(const Context& context, int rank_, plan::Plan& plan)
    : c(context),
      rank(rank_),
      outer(c.split.outer_of(rank)),
      inner(c.split.inner_of(rank)),
      backward(c.pass == Pass::backward),
      heads(slice_of(heads_of(c.problem, c.split, inner), c.split, 0)),
      storage(c.problem.dtype),
      accumulate(accumulate_type(storage)),
      b(plan),
      plan_(plan) {
  compute_queue = b.queue(plan::QueueKind::compute, "compute");
  comm_queue = b.queue(plan::QueueKind::comm, "comm");
}

void Emit::take_slice(int number) {
  slice = number;
  heads = slice_of(heads_of(c.problem, c.split, inner), c.split, slice);
}

std::string Emit::of_slice(const char* name) const {
  return c.split.slices == 1 ? std::string(name) : fmt::format("{}.{}", name, slice);
}

int Emit::tensor(const std::string& name, Role role, DType type, std::int64_t rows,
                 std::int64_t num_heads, std::int64_t dim) {
  return b.buffer({name, role, type, {rows, num_heads, dim}, false});
}

int Emit::statistic(const std::string& name, Role role, std::int64_t rows) {
  return b.buffer({name, role, accumulate, {heads.query.size(), rows, 1}, true});
}

Bundle Emit::new_queries(const std::string& suffix, std::int64_t rows) {
  const auto hq = heads.query.size();
  Bundle x{tensor("q" + suffix, Role::scratch, storage, rows, hq, c.problem.head_dim)};
  if (backward) {
    x.push_back(tensor("do" + suffix, Role::scratch, storage, rows, hq, c.problem.value_dim));
    x.push_back(statistic("lse" + suffix, Role::scratch, rows));
    x.push_back(statistic("delta" + suffix, Role::scratch, rows));
  }
  return x;
}

Bundle Emit::new_keys(const std::string& suffix, std::int64_t rows) {
  const auto hk = heads.kv.size();
  return {tensor("k" + suffix, Role::scratch, storage, rows, hk, c.problem.head_dim),
          tensor("v" + suffix, Role::scratch, storage, rows, hk, c.problem.value_dim)};
}

Bundle Emit::new_out(const std::string& suffix, std::int64_t rows) {
  const auto hq = heads.query.size();
  if (backward)
    return {tensor("dq" + suffix, Role::scratch, accumulate, rows, hq, c.problem.head_dim)};
  return {tensor("o" + suffix, Role::scratch, accumulate, rows, hq, c.problem.value_dim),
          statistic("lse" + suffix, Role::scratch, rows)};
}

Bundle Emit::new_dkeys(const std::string& suffix, std::int64_t rows) {
  const auto hk = heads.kv.size();
  return {tensor("dk" + suffix, Role::scratch, accumulate, rows, hk, c.problem.head_dim),
          tensor("dv" + suffix, Role::scratch, accumulate, rows, hk, c.problem.value_dim)};
}

std::vector<Use> Emit::uses(const Bundle& bundle, Access access) const {
  std::vector<Use> out;
  for (int id : bundle) out.push_back(b.all(id, access));
  return out;
}

std::int64_t Emit::bytes(const std::vector<Use>& list) const {
  std::int64_t n = 0;
  for (const Use& u : list) {
    const plan::Buffer& buffer = plan_.buffers[static_cast<std::size_t>(u.buffer)];
    n += u.d0.size() * u.d1.size() * buffer.shape[2] * size_of(buffer.dtype);
  }
  return n;
}

void Emit::clear_out(const Bundle& out, int chunk) {
  const auto list = uses(out, Access::write);
  const auto touched = static_cast<double>(bytes(list));
  if (!backward) {
    b.compute(compute_queue, label::forward_reset, plan::chunk(chunk),
              {"attention.reset", 0, touched}, list);
    return;
  }
  b.compute(compute_queue, label::backward_zero, plan::chunk(chunk), {"tensor.zero", 0, touched},
            list);
}

void Emit::clear_dkeys(const Bundle& dkeys, int chunk) {
  for (int id : dkeys) {
    const std::vector<Use> list{b.all(id, Access::write)};
    b.compute(compute_queue, label::backward_zero, plan::chunk(chunk),
              {"tensor.zero", 0, static_cast<double>(bytes(list))}, list);
  }
}

void Emit::tile(int q_chunk, int k_chunk, std::int64_t area, const Bundle& queries,
                const Bundle& keys, const Bundle& out, const Bundle& dkeys) {
  std::vector<Use> list{b.all(queries[0], Access::read), b.all(keys[0], Access::read),
                        b.all(keys[1], Access::read)};
  for (std::size_t i = 1; i < queries.size(); ++i) list.push_back(b.all(queries[i], Access::read));
  for (int id : out) list.push_back(b.all(id, Access::update));
  if (backward)
    for (int id : dkeys) list.push_back(b.all(id, Access::update));
  const plan::Work work{backward ? "attention.backward" : "attention.forward",
                        c.problem.flops(c.pass, area, heads.query.size()),
                        static_cast<double>(bytes(list))};
  b.compute(compute_queue, backward ? label::backward_tile : label::forward_tile,
            plan::tile((q_chunk * c.split.u + inner) * c.split.slices + slice, k_chunk), work,
            std::move(list));
}

void Emit::join_out(const Bundle& from, const Bundle& to, int chunk) {
  if (backward)
    return add(label::backward_add, plan::chunk(chunk), b.all(from[0], Access::read),
               b.all(to[0], Access::update));
  std::vector<Use> list = uses(from, Access::read);
  for (const Use& u : uses(to, Access::update)) list.push_back(u);
  const auto touched = static_cast<double>(bytes(list));
  b.compute(compute_queue, label::forward_merge, plan::chunk(chunk),
            {"attention.merge", 0, touched}, std::move(list));
}

void Emit::join_dkeys(const Bundle& from, const Bundle& to, int chunk) {
  for (std::size_t i = 0; i < from.size(); ++i)
    add(label::backward_add, plan::chunk(chunk), b.all(from[i], Access::read),
        b.all(to[i], Access::update));
}

void Emit::copy(std::string_view label, Use from, Use to) {
  const std::vector<Use> list{from, to};
  b.compute(compute_queue, label, {}, {"tensor.copy", 0, static_cast<double>(bytes(list))}, list);
}

void Emit::add(std::string_view label, plan::Index index, Use from, Use to) {
  const std::vector<Use> list{from, to};
  b.compute(compute_queue, label, index, {"tensor.add", 0, static_cast<double>(bytes(list))}, list);
}

const Bundle& Pool::take(int now, int last) {
  for (Entry& e : entries_)
    if (e.free_after < now) {
      e.free_after = last;
      return e.bundle;
    }
  entries_.push_back({make_(static_cast<int>(entries_.size())), last});
  return entries_.back().bundle;
}

Pools::Pools(Emit& e)
    : queries([&e](int i) { return e.new_queries(fmt::format(".in{}", i), e.c.q_rows); }),
      keys([&e](int i) { return e.new_keys(fmt::format(".in{}", i), e.c.k_rows); }),
      out([&e](int i) { return e.new_out(fmt::format(".part{}", i), e.c.q_rows); }),
      dkeys([&e](int i) { return e.new_dkeys(fmt::format(".part{}", i), e.c.k_rows); }),
      staging_out([&e](int i) { return e.new_out(fmt::format(".stage{}", i), e.c.q_rows); }),
      staging_dkeys([&e](int i) { return e.new_dkeys(fmt::format(".stage{}", i), e.c.k_rows); }) {}

}  // namespace tessera::attention
