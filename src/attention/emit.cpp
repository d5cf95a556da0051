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

std::vector<Use> Emit::uses(const Bundle& bundle, Access access, Range rows) const {
  std::vector<Use> out;
  for (int id : bundle)
    out.push_back(info(id).statistic ? b.part(id, access, {0, info(id).shape[0]}, rows)
                                     : b.rows(id, access, rows));
  return out;
}

std::int64_t Emit::bytes(const std::vector<Use>& list) const {
  std::int64_t n = 0;
  for (const Use& u : list) n += plan::bytes_of(plan_, u);
  return n;
}

void Emit::compute(std::string_view label, plan::Index index, std::string_view op,
                   std::vector<Use> list) {
  if (list.empty()) return;
  const auto touched = static_cast<double>(bytes(list));
  b.compute(compute_queue, label, index, {op, 0, touched}, std::move(list));
}

void Emit::begin(const Bundle& result, int chunk, Range rows) { empty_[result[0]] = {chunk, rows}; }

void Emit::touch(const Bundle& result, Range first) {
  const auto at = empty_.find(result[0]);
  if (at == empty_.end()) return;
  const auto [chunk, rows] = at->second;
  empty_.erase(at);
  if (first.empty()) return clear(result, chunk, {rows});
  clear(result, chunk, {{rows.begin, first.begin}, {first.end, rows.end}});
  clear(result, chunk, {first});
}

void Emit::clear(const Bundle& result, int chunk, const std::vector<Range>& ranges) {
  const bool state = info(result.back()).statistic;  // (O, LSE)
  std::vector<Use> zeros;
  for (const Range& rows : ranges) {
    if (rows.empty()) continue;
    const std::vector<Use> list = uses(result, Access::write, rows);
    if (state)
      compute(label::forward_reset, plan::chunk(chunk), "attention.reset", list);
    else
      zeros.insert(zeros.end(), list.begin(), list.end());
  }
  compute(label::backward_zero, plan::chunk(chunk), "tensor.zero", std::move(zeros));
}

void Emit::tile(int q_chunk, int k_chunk, const Extent& seen, const Bundle& queries,
                const Bundle& keys, const Bundle& out, const Bundle& dkeys) {
  touch(out, seen.queries);
  if (backward) touch(dkeys, seen.keys);
  std::vector<Use> list = uses(queries, Access::read, seen.queries);
  const auto put = [&](std::ptrdiff_t at, const std::vector<Use>& more) {
    list.insert(list.begin() + at, more.begin(), more.end());
  };
  put(1, uses(keys, Access::read, seen.keys));  // q, k, v, then what else belongs to the queries
  put(std::ssize(list), uses(out, Access::update, seen.queries));
  if (backward) put(std::ssize(list), uses(dkeys, Access::update, seen.keys));
  const plan::Work work{backward ? "attention.backward" : "attention.forward",
                        c.problem.flops(c.pass, seen.area, heads.query.size()),
                        static_cast<double>(bytes(list))};
  b.compute(compute_queue, backward ? label::backward_tile : label::forward_tile,
            plan::tile((q_chunk * c.split.u + inner) * c.split.slices + slice, k_chunk), work,
            std::move(list));
}

void Emit::join(const Bundle& from, const Bundle& to, int chunk, Range rows) {
  settle(to);
  const std::vector<Use> in = uses(from, Access::read, rows), out = uses(to, Access::update, rows);
  if (info(to.back()).statistic)
    return compute(label::forward_merge, plan::chunk(chunk), "attention.merge",
                   {in[0], in[1], out[0], out[1]});
  std::vector<Use> pairs;
  for (std::size_t i = 0; i < in.size(); ++i) pairs.insert(pairs.end(), {in[i], out[i]});
  add(label::backward_add, plan::chunk(chunk), std::move(pairs));
}

void Emit::copy(std::string_view label, std::vector<Use> pairs) {
  compute(label, {}, "tensor.copy", std::move(pairs));
}

void Emit::add(std::string_view label, plan::Index index, std::vector<Use> pairs) {
  compute(label, index, "tensor.add", std::move(pairs));
}

void Emit::sum(std::string_view label, plan::Index index, std::vector<Use> terms_and_result) {
  compute(label, index, "tensor.sum", std::move(terms_and_result));
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
      dkeys([&e](int i) { return e.new_dkeys(fmt::format(".part{}", i), e.c.k_rows); }) {}

}  // namespace tessera::attention
