// SPDX-License-Identifier: Apache-2.0
#include "attention/scheme.hpp"

#include <algorithm>
#include <numeric>

#include "attention/emit.hpp"
#include "attention/ulysses.hpp"

namespace tessera::attention {

using plan::Access;
using plan::Role;

namespace {

/// The rings that a scheme runs inside its head groups.
SchemeKind body_of(const Scheme& s) {
  if (s.kind == SchemeKind::unified) return s.outer;
  return s.kind == SchemeKind::ulysses ? SchemeKind::ring : s.kind;
}

/// A scheme that runs the mesh body; rings are meshes with one row.
bool is_mesh(const Scheme& s) {
  return body_of(s) == SchemeKind::mesh || body_of(s) == SchemeKind::ring;
}

/// A scheme whose body is a ring is a mesh with one row.
Scheme normal(Scheme s, int r) {
  if (body_of(s) == SchemeKind::ring) s.a = 1, s.b = r;
  return s;
}

/// Groups of ranks base + stride * i for every base in `bases`.
plan::Axis make_axis(std::string name, int count, const std::vector<int>& bases, int stride) {
  plan::Axis axis{std::move(name), {}};
  for (int base : bases) {
    auto& group = axis.groups.emplace_back();
    for (int i = 0; i < count; ++i) group.push_back(base + stride * i);
  }
  return axis;
}

/// Ranks whose coordinate along an axis of `count` members with this stride is 0.
std::vector<int> bases(int n, int count, int stride) {
  std::vector<int> out;
  for (int r = 0; r < n; ++r)
    if (r / stride % count == 0) out.push_back(r);
  return out;
}

std::vector<plan::Axis> make_axes(const Scheme& s, const Split& split) {
  const int n = split.n, u = split.u, r = split.r;
  std::vector<plan::Axis> axes;
  auto add = [&](const char* name, int count, int stride) {
    if (count > 1) axes.push_back(make_axis(name, count, bases(n, count, stride), stride));
  };
  add("ulysses", u, 1);
  switch (body_of(s)) {
    case SchemeKind::double_ring:
      add("inner", s.inner, 1);
      add("outer", n / s.inner, s.inner);
      break;
    case SchemeKind::all_gather:
      add("gather", n, 1);
      break;
    case SchemeKind::ring:
      add("ring", r, u);
      break;
    default:
      add("row", s.a, u);
      add("column", s.b, u * s.a);
  }
  axes.push_back(make_axis("context", n, {0}, 1));
  return axes;
}

/// One rank's plan: inputs, exchange in, body, results, exchange out.
class RankPlan {
 public:
  RankPlan(const Context& c, int rank, const Lockstep& order, const Costs& costs, int axes,
           plan::Plan& plan)
      : e_(c, rank, plan),
        p_(c.problem),
        order_(order),
        costs_(costs),
        u_(c.split.u),
        last_axis_(axes - 1) {}

  void forward() {
    Home home;
    home.queries = {input(name::q, p_.query_heads, p_.head_dim)};
    home.keys = {input(name::k, p_.kv_heads, p_.head_dim),
                 input(name::v, p_.kv_heads, p_.value_dim)};
    const int o =
        e_.tensor(name::o, Role::output, e_.storage, q_shard(), p_.query_heads, p_.value_dim);
    const bool direct = u_ == 1 && e_.storage == e_.accumulate;
    if (u_ > 1) enter_forward(home);
    const int acc = direct ? o
                           : e_.tensor("o.acc", Role::scratch, e_.accumulate, e_.c.q_rows,
                                       e_.heads.query.size(), p_.value_dim);
    home.out = {acc, e_.statistic(name::lse, u_ > 1 ? Role::saved : Role::output, e_.c.q_rows)};
    e_.clear_out(home.out, e_.outer);
    body(home);
    if (p_.sink) apply_sink(home.out);
    if (direct) return;
    if (u_ == 1)
      return e_.copy(label::forward_store, e_.b.all(acc, Access::read), e_.b.all(o, Access::write));
    const int stored = e_.tensor("o.chunk", Role::saved, e_.storage, e_.c.q_rows,
                                 e_.heads.query.size(), p_.value_dim);
    e_.copy(label::forward_store, e_.b.all(acc, Access::read), e_.b.all(stored, Access::write));
    emit_exit(e_, {{o, stored, true}}, 0, u_);
  }

  void backward() {
    Home home;
    int o = -1, lse = -1, dout = -1;
    dout = e_.tensor(name::dout, Role::input, e_.storage, q_shard(), p_.query_heads, p_.value_dim);
    if (u_ == 1) {
      home.queries = {input(name::q, p_.query_heads, p_.head_dim)};
      home.keys = {input(name::k, p_.kv_heads, p_.head_dim),
                   input(name::v, p_.kv_heads, p_.value_dim)};
      o = e_.tensor(name::o, Role::input, e_.storage, q_shard(), p_.query_heads, p_.value_dim);
      lse = e_.statistic(name::lse, Role::input, e_.c.q_rows);
    } else {
      bind_saved(home, o, lse);
      const int chunk = e_.tensor("do.chunk", Role::scratch, e_.storage, e_.c.q_rows,
                                  e_.heads.query.size(), p_.value_dim);
      emit_enter(e_, {{dout, chunk, true}}, 0, 0);
      dout = chunk;
    }
    const int delta = e_.statistic("delta", Role::scratch, e_.c.q_rows);
    compute_delta(o, dout, delta);
    home.queries.insert(home.queries.end(), {dout, lse, delta});
    make_gradients(home);
    body(home);
    store_gradients(home);
    if (p_.sink) sink_gradient(lse, delta);
  }

 private:
  std::int64_t q_shard() const { return e_.c.q_rows / u_; }
  std::int64_t k_shard() const { return e_.c.k_rows / u_; }

  int input(const char* name, std::int64_t heads, std::int64_t dim) {
    const bool query = name == name::q;
    return e_.tensor(name, Role::input, e_.storage, query ? q_shard() : k_shard(), heads, dim);
  }

  void enter_forward(Home& home) {
    const auto hq = e_.heads.query.size(), hk = e_.heads.kv.size();
    const int q = e_.tensor("q.chunk", Role::saved, e_.storage, e_.c.q_rows, hq, p_.head_dim);
    const int k = e_.tensor("k.chunk", Role::saved, e_.storage, e_.c.k_rows, hk, p_.head_dim);
    const int v = e_.tensor("v.chunk", Role::saved, e_.storage, e_.c.k_rows, hk, p_.value_dim);
    emit_enter(e_, {{home.queries[0], q, true}, {home.keys[0], k, false}, {home.keys[1], v, false}},
               0, 0);
    home.queries = {q};
    home.keys = {k, v};
  }

  /// What forward left in this rank's head group.
  void bind_saved(Home& home, int& o, int& lse) {
    const auto hq = e_.heads.query.size(), hk = e_.heads.kv.size();
    home.queries = {e_.tensor("q.chunk", Role::input, e_.storage, e_.c.q_rows, hq, p_.head_dim)};
    home.keys = {e_.tensor("k.chunk", Role::input, e_.storage, e_.c.k_rows, hk, p_.head_dim),
                 e_.tensor("v.chunk", Role::input, e_.storage, e_.c.k_rows, hk, p_.value_dim)};
    o = e_.tensor("o.chunk", Role::input, e_.storage, e_.c.q_rows, hq, p_.value_dim);
    lse = e_.statistic(name::lse, Role::input, e_.c.q_rows);
  }

  void body(const Home& home) {
    const int axis = u_ > 1 ? 1 : 0;
    switch (body_of(e_.c.scheme)) {
      case SchemeKind::double_ring:
        return emit_double_ring(e_, home, costs_, axis);
      case SchemeKind::all_gather:
        return emit_all_gather(e_, home, axis);
      default:
        return emit_mesh_scheme(e_, home, order_, axis);
    }
  }

  void compute_delta(int o, int dout, int delta) {
    const std::vector<plan::Use> list{e_.b.all(o, Access::read), e_.b.all(dout, Access::read),
                                      e_.b.all(delta, Access::write)};
    e_.b.compute(e_.compute_queue, label::backward_delta, plan::chunk(e_.outer),
                 {"attention.delta", 0, static_cast<double>(e_.bytes(list))}, list);
  }

  /// Sums are kept in the accumulate dtype; they are the outputs where nothing has to be converted.
  void make_gradients(Home& home) {
    const bool direct = u_ == 1 && e_.storage == e_.accumulate;
    const auto hq = e_.heads.query.size(), hk = e_.heads.kv.size();
    const Role role = direct ? Role::output : Role::scratch;
    home.out = {
        e_.tensor(direct ? name::dq : "dq.acc", role, e_.accumulate, e_.c.q_rows, hq, p_.head_dim)};
    home.dkeys = {
        e_.tensor(direct ? name::dk : "dk.acc", role, e_.accumulate, e_.c.k_rows, hk, p_.head_dim),
        e_.tensor(direct ? name::dv : "dv.acc", role, e_.accumulate, e_.c.k_rows, hk,
                  p_.value_dim)};
    e_.clear_out(home.out, e_.outer);
    e_.clear_dkeys(home.dkeys, e_.outer);
  }

  void store_gradients(const Home& home) {
    if (u_ == 1 && e_.storage == e_.accumulate) return;
    const int dq =
        e_.tensor(name::dq, Role::output, e_.storage, q_shard(), p_.query_heads, p_.head_dim);
    const int dk =
        e_.tensor(name::dk, Role::output, e_.storage, k_shard(), p_.kv_heads, p_.head_dim);
    const int dv =
        e_.tensor(name::dv, Role::output, e_.storage, k_shard(), p_.kv_heads, p_.value_dim);
    if (u_ == 1) {
      const int from[] = {home.out[0], home.dkeys[0], home.dkeys[1]}, to[] = {dq, dk, dv};
      for (int i = 0; i < 3; ++i)
        e_.copy(label::backward_store, e_.b.all(from[i], Access::read),
                e_.b.all(to[i], Access::write));
      return;
    }
    exchange_gradients(home, dq, dk, dv);
  }

  /// Replicated KV heads are summed over their replicas, in the accumulate dtype; all else travels
  /// in the storage dtype, in which it ends.
  void exchange_gradients(const Home& home, int dq, int dk, int dv) {
    const bool replicated = p_.kv_heads % u_ != 0;
    auto stored = [&](int acc, const char* name) {
      if (e_.storage == e_.accumulate) return acc;
      const plan::Buffer like = e_.plan().buffers[static_cast<std::size_t>(acc)];
      const int out =
          e_.tensor(name, Role::scratch, e_.storage, like.shape[0], like.shape[1], like.shape[2]);
      e_.copy(label::backward_store, e_.b.all(acc, Access::read), e_.b.all(out, Access::write));
      return out;
    };
    const int q = stored(home.out[0], "dq.chunk");
    if (!replicated) {
      const int k = stored(home.dkeys[0], "dk.chunk"), v = stored(home.dkeys[1], "dv.chunk");
      return emit_exit(e_, {{dq, q, true}, {dk, k, false}, {dv, v, false}}, 0, u_);
    }
    const bool same = e_.storage == e_.accumulate;
    const int sum_k = same ? dk
                           : e_.tensor("dk.sum", Role::scratch, e_.accumulate, k_shard(),
                                       p_.kv_heads, p_.head_dim);
    const int sum_v = same ? dv
                           : e_.tensor("dv.sum", Role::scratch, e_.accumulate, k_shard(),
                                       p_.kv_heads, p_.value_dim);
    e_.clear_dkeys({sum_k, sum_v}, e_.outer);
    emit_exit(e_, {{dq, q, true}, {sum_k, home.dkeys[0], false}, {sum_v, home.dkeys[1], false}}, 0,
              u_);
    if (same) return;
    e_.copy(label::backward_store, e_.b.all(sum_k, Access::read), e_.b.all(dk, Access::write));
    e_.copy(label::backward_store, e_.b.all(sum_v, Access::read), e_.b.all(dv, Access::write));
  }

  /// Sinks are applied after all merges (brief 1.4): inside the partials they would count n times.
  void apply_sink(const Bundle& out) {
    const int sink =
        e_.b.buffer({name::sink, Role::input, e_.accumulate, {p_.query_heads, 1, 1}, false});
    std::vector<plan::Use> list{e_.b.rows(sink, Access::read, e_.heads.query)};
    for (const plan::Use& use : e_.uses(out, Access::update)) list.push_back(use);
    e_.b.compute(e_.compute_queue, label::forward_sink, plan::chunk(e_.outer),
                 {"attention.sink", 0, static_cast<double>(e_.bytes(list))}, list);
  }

  void sink_gradient(int lse, int delta) {
    const int sink =
        e_.b.buffer({name::sink, Role::input, e_.accumulate, {p_.query_heads, 1, 1}, false});
    const int dsink =
        e_.b.buffer({name::dsink, Role::output, e_.accumulate, {p_.query_heads, 1, 1}, false});
    e_.clear_dkeys({dsink}, e_.outer);
    const std::vector<plan::Use> list{e_.b.rows(sink, Access::read, e_.heads.query),
                                      e_.b.all(lse, Access::read), e_.b.all(delta, Access::read),
                                      e_.b.rows(dsink, Access::update, e_.heads.query)};
    e_.b.compute(e_.compute_queue, label::backward_sink, plan::chunk(e_.outer),
                 {"attention.sink_grad", 0, static_cast<double>(e_.bytes(list))}, list);
    if (e_.c.split.n > 1)
      e_.b.all_reduce(e_.comm_queue, label::reduce_sink, {}, last_axis_, 3 * u_,
                      {e_.b.all(dsink, Access::update)});
  }

  Emit e_;
  const Problem& p_;
  const Lockstep& order_;
  const Costs& costs_;
  const int u_, last_axis_;
};

std::vector<plan::WorkItem> coverage(const Context& c) {
  std::vector<plan::WorkItem> items;
  const auto label = c.pass == Pass::forward ? label::forward_tile : label::backward_tile;
  for (int q = 0; q < c.split.r; ++q)
    for (int k = 0; k < c.split.r; ++k)
      for (int i = 0; i < c.split.u && c.map.area(q, k) > 0; ++i)
        items.push_back({label, plan::tile(q * c.split.u + i, k)});
  return items;
}

const plan::Tier& tier_of(const plan::Machine& m, int rank, int peer) {
  const int node = std::max(1, m.ranks_per_node);
  return rank / node == peer / node ? m.intra : m.inter;
}

/// Slowest link between neighbours of a ring with this stride.
double transfer_time(const plan::Machine& m, int n, int size, int stride, double bytes) {
  double worst = 0;
  for (int r = 0; r < n; ++r) {
    const int at = r / stride % size;
    const int next = r + (at + 1 < size ? stride : -(size - 1) * stride);
    const plan::Tier& t = tier_of(m, r, next);
    if (t.bandwidth_b_s > 0) worst = std::max(worst, t.latency_s + bytes / t.bandwidth_b_s);
  }
  return worst;
}

double rate_of(const plan::Machine& m, const char* op, DType type, double& overhead) {
  for (const plan::Rate& r : m.rates)
    if (r.op == op && r.dtype == type) {
      overhead = r.overhead_s;
      return r.flops_s;
    }
  return 0;
}

}  // namespace

Costs costs_of(const Problem& p, const Split& s, int a, Pass pass, const plan::Machine& m) {
  const double cq = static_cast<double>(p.batch * s.q_padded / s.r),
               ck = static_cast<double>(p.batch * s.k_padded / s.r);
  const double hq = static_cast<double>(p.query_heads) / s.u,
               hk = std::max(1.0, static_cast<double>(p.kv_heads) / s.u);
  const double w = static_cast<double>(size_of(p.dtype)),
               wa = static_cast<double>(size_of(accumulate_type(p.dtype)));
  const double d = static_cast<double>(p.head_dim), dv = static_cast<double>(p.value_dim);
  const bool forward = pass == Pass::forward;
  double overhead = 0;
  const double rate =
      rate_of(m, forward ? "attention.forward" : "attention.backward", p.dtype, overhead);
  const double area = static_cast<double>(p.mask.area()) / (static_cast<double>(s.r) * s.r);
  Costs c;
  c.block = overhead + (rate > 0 ? p.flops(pass, 1, 1) * area * hq / rate : 0);
  if (c.block <= 0) c.block = 1e-9;
  const int b = s.r / a, column = s.u * a;
  c.q = transfer_time(m, s.n, a, s.u, cq * hq * (forward ? d * w : (d + dv) * w + 2 * wa));
  c.kv = transfer_time(m, s.n, b, column, ck * hk * (d + dv) * w);
  c.out = transfer_time(m, s.n, a, s.u, cq * hq * (forward ? dv * wa + wa : d * wa));
  c.dkv = transfer_time(m, s.n, b, column, ck * hk * (d + dv) * wa);
  for (double* t : {&c.q, &c.kv, &c.out, &c.dkv}) *t = std::max(*t, 1e-12);
  return c;
}

Scheme choose(const Problem& p, Scheme scheme, int n, Pass pass, const plan::Machine& machine) {
  const Split s = make_split(p, scheme, n);
  scheme = normal(scheme, s.r);
  if (body_of(scheme) != SchemeKind::mesh || scheme.a != 0) return scheme;
  double best = 0, best_memory = 0;
  for (int a = 1; a <= s.r; ++a) {
    if (s.r % a != 0) continue;
    const int b = s.r / a;
    const double time = lockstep(a, b, pass, costs_of(p, s, a, pass, machine)).makespan;
    const double memory =
        a + 2.0 * b * static_cast<double>(p.kv_heads) / static_cast<double>(p.query_heads) + a;
    const bool better = scheme.a == 0 || time < best * (1 - 1e-9) ||
                        (time <= best * (1 + 1e-9) && memory < best_memory);
    if (better) scheme.a = a, scheme.b = b, best = time, best_memory = memory;
  }
  return scheme;
}

plan::Program make_program(const Problem& p, const Scheme& scheme, int n, Pass pass,
                           const Costs& costs) {
  Context c(p, scheme, n, pass);
  c.scheme = normal(scheme, c.split.r);
  plan::Program program;
  program.name = scheme.text() + " " + std::string(name_of(pass));
  program.axes = make_axes(scheme, c.split);
  const Lockstep order =
      is_mesh(c.scheme) ? lockstep(c.scheme.a, c.scheme.b, pass, costs) : Lockstep{};
  program.plans.resize(static_cast<std::size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    RankPlan plan(c, rank, order, costs, static_cast<int>(program.axes.size()),
                  program.plans[static_cast<std::size_t>(rank)]);
    pass == Pass::forward ? plan.forward() : plan.backward();
  }
  program.coverage = coverage(c);
  return program;
}

plan::Program make_program(const Problem& p, const Scheme& scheme, int n, Pass pass,
                           const plan::Machine& machine) {
  const Split split = make_split(p, scheme, n);
  const Scheme s = normal(scheme, split.r);
  return make_program(p, scheme, n, pass, costs_of(p, split, is_mesh(s) ? s.a : 1, pass, machine));
}

std::pair<Rows, Rows> tile_rows(const Context& c, int rank, const plan::Index& index) {
  const int q = index.i / c.split.u;
  Rows keys = key_chunk(c.problem, c.split, index.j);
  if (c.scheme.kind == SchemeKind::all_gather && index.j != rank)
    keys = slice(keys, needed_keys(c, q, index.j));
  return {query_chunk(c.problem, c.split, q), std::move(keys)};
}

}  // namespace tessera::attention
