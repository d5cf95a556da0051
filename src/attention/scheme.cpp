// SPDX-License-Identifier: Apache-2.0
#include "attention/scheme.hpp"

#include <array>
#include <utility>

#include "attention/emit.hpp"
#include "attention/gradients.hpp"
#include "attention/ulysses.hpp"

namespace tessera::attention {

using plan::Access;
using plan::Role;

namespace {

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
    if (u_ > 1) return forward_in_groups(home, o);
    const bool direct = e_.storage == e_.accumulate;
    const int acc = direct ? o
                           : e_.tensor("o.acc", Role::scratch, e_.accumulate, e_.c.q_rows,
                                       e_.heads.query.size(), p_.value_dim);
    home.out = {acc, e_.statistic(name::lse, Role::output, e_.c.q_rows)};
    attend(home);
    if (!direct)
      e_.copy(label::forward_store, {e_.b.all(acc, Access::read), e_.b.all(o, Access::write)});
  }

  void backward() {
    const int dout =
        e_.tensor(name::dout, Role::input, e_.storage, q_shard(), p_.query_heads, p_.value_dim);
    if (u_ > 1) return backward_in_groups(dout);
    Home home;
    home.queries = {input(name::q, p_.query_heads, p_.head_dim)};
    home.keys = {input(name::k, p_.kv_heads, p_.head_dim),
                 input(name::v, p_.kv_heads, p_.value_dim)};
    const int o =
        e_.tensor(name::o, Role::input, e_.storage, q_shard(), p_.query_heads, p_.value_dim);
    const int lse = e_.statistic(name::lse, Role::input, e_.c.q_rows);
    differentiate(home, o, dout, lse);
    store_gradients(home);
    reduce_sink();
  }

 private:
  std::int64_t q_shard() const { return e_.c.q_rows / u_; }
  std::int64_t k_shard() const { return e_.c.k_rows / u_; }

  int input(const char* name, std::int64_t heads, std::int64_t dim) {
    const bool query = name == name::q;
    return e_.tensor(name, Role::input, e_.storage, query ? q_shard() : k_shard(), heads, dim);
  }

  /// Match keys of the exchanges of a slice: in from here on, out from u further on.
  int key_of(int slice) const { return slice * 4 * u_; }

  /// Head groups: exchange, body and exchange back, slice by slice. Messages of the next slice are
  /// on their way while the body of this one computes, and so are those of the one before.
  void forward_in_groups(const Home& shard, int o) {
    const int slices = e_.c.split.slices;
    const auto heads = e_.heads.query.size();
    const int lse = whole_statistic(Role::saved);
    std::vector<Home> homes{enter_forward(shard, 0)};
    Outbound before;
    for (int g = 0; g < slices; ++g) {
      if (g + 1 < slices) homes.push_back(enter_forward(shard, g + 1));
      e_.take_slice(g);
      Home& home = homes[static_cast<std::size_t>(g)];
      const int acc = e_.tensor(e_.of_slice("o.acc"), Role::scratch, e_.accumulate, e_.c.q_rows,
                                heads, p_.value_dim);
      const int part =
          slices == 1 ? lse : e_.statistic(e_.of_slice("lse.part"), Role::scratch, e_.c.q_rows);
      home.out = {acc, part};
      attend(home);
      const Exchanged x{o, e_.tensor(e_.of_slice("o.chunk"), Role::saved, e_.storage, e_.c.q_rows,
                                     heads, p_.value_dim)};
      std::vector<plan::Use> stores{e_.b.all(acc, Access::read), e_.b.all(x.chunk, Access::write),
                                    e_.b.rows(acc, Access::read, shard_rows(e_, x, e_.inner)),
                                    own_place(e_, x)};
      if (slices > 1)
        stores.insert(stores.end(), {e_.b.all(part, Access::read),
                                     e_.b.rows(lse, Access::write, {g * heads, (g + 1) * heads})});
      e_.copy(label::forward_store, std::move(stores));
      Outbound out = emit_exit(e_, {x}, 0, key_of(g) + u_);
      emit_unpack(e_, before);
      before = std::move(out);
    }
    emit_unpack(e_, before);
  }

  void backward_in_groups(int dout) {
    const int slices = e_.c.split.slices;
    const auto heads = e_.heads.query.size();
    const int lse = whole_statistic(Role::input);
    const auto [dq, dk, dv] = gradients();
    std::vector<int> douts{enter_backward(dout, 0)};
    Outbound before;
    for (int g = 0; g < slices; ++g) {
      if (g + 1 < slices) douts.push_back(enter_backward(dout, g + 1));
      e_.take_slice(g);
      int part = lse;
      if (slices > 1) {
        part = e_.statistic(e_.of_slice("lse.part"), Role::scratch, e_.c.q_rows);
        e_.copy(label::pack, {e_.b.rows(lse, Access::read, {g * heads, (g + 1) * heads}),
                              e_.b.all(part, Access::write)});
      }
      Home home;
      const int o = bind_saved(home);
      differentiate(home, o, douts[static_cast<std::size_t>(g)], part);
      Outbound out = exchange_gradients(home, dq, dk, dv);
      emit_unpack(e_, before);
      before = std::move(out);
    }
    emit_unpack(e_, before);
    reduce_sink();
  }

  /// LSE of all heads of the rank's group.
  int whole_statistic(Role role) {
    const Heads h = heads_of(p_, e_.c.split, e_.inner);
    return e_.b.buffer({name::lse, role, e_.accumulate, {h.query.size(), e_.c.q_rows, 1}, true});
  }

  Home enter_forward(const Home& shard, int slice) {
    e_.take_slice(slice);
    const auto hq = e_.heads.query.size(), hk = e_.heads.kv.size();
    const auto chunk = [&](const char* name, std::int64_t rows, std::int64_t heads,
                           std::int64_t dim) {
      return e_.tensor(e_.of_slice(name), Role::saved, e_.storage, rows, heads, dim);
    };
    const int q = chunk("q.chunk", e_.c.q_rows, hq, p_.head_dim);
    const int k = chunk("k.chunk", e_.c.k_rows, hk, p_.head_dim);
    const int v = chunk("v.chunk", e_.c.k_rows, hk, p_.value_dim);
    emit_enter(e_,
               {{shard.queries[0], q, true}, {shard.keys[0], k, false}, {shard.keys[1], v, false}},
               0, key_of(slice));
    return {{q}, {k, v}, {}, {}};
  }

  int enter_backward(int dout, int slice) {
    e_.take_slice(slice);
    const int chunk = e_.tensor(e_.of_slice("do.chunk"), Role::scratch, e_.storage, e_.c.q_rows,
                                e_.heads.query.size(), p_.value_dim);
    emit_enter(e_, {{dout, chunk, true}}, 0, key_of(slice));
    return chunk;
  }

  /// What forward left in this rank's head group; returns the output.
  int bind_saved(Home& home) {
    const auto hq = e_.heads.query.size(), hk = e_.heads.kv.size();
    const auto chunk = [&](const char* name, std::int64_t rows, std::int64_t heads,
                           std::int64_t dim) {
      return e_.tensor(e_.of_slice(name), Role::input, e_.storage, rows, heads, dim);
    };
    home.queries = {chunk("q.chunk", e_.c.q_rows, hq, p_.head_dim)};
    home.keys = {chunk("k.chunk", e_.c.k_rows, hk, p_.head_dim),
                 chunk("v.chunk", e_.c.k_rows, hk, p_.value_dim)};
    return chunk("o.chunk", e_.c.q_rows, hq, p_.value_dim);
  }

  /// Delta, the body's tiles and, in the slice's heads, the gradient of the sink.
  void differentiate(Home& home, int o, int dout, int lse) {
    const int delta = e_.statistic(e_.of_slice("delta"), Role::scratch, e_.c.q_rows);
    compute_delta(o, dout, delta);
    home.queries.insert(home.queries.end(), {dout, lse, delta});
    make_gradients(home);
    body(home);
    if (p_.sink) sink_gradient(lse, delta);
  }

  /// The body of forward and what follows all merges.
  void attend(Home& home) {
    e_.begin(home.out, e_.outer);
    body(home);
    e_.settle(home.out);
    if (p_.sink) apply_sink(home.out);
  }

  void body(Home& home) {
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
    home.out = {e_.tensor(direct ? name::dq : e_.of_slice("dq.acc"), role, e_.accumulate,
                          e_.c.q_rows, hq, p_.head_dim)};
    home.dkeys = {e_.tensor(direct ? name::dk : e_.of_slice("dk.acc"), role, e_.accumulate,
                            e_.c.k_rows, hk, p_.head_dim),
                  e_.tensor(direct ? name::dv : e_.of_slice("dv.acc"), role, e_.accumulate,
                            e_.c.k_rows, hk, p_.value_dim)};
    e_.begin(home.out, e_.outer);
    e_.begin(home.dkeys, e_.outer);
  }

  /// The shards dQ, dK and dV that the caller binds.
  std::array<int, 3> gradients() {
    const auto shard = [&](const char* name, std::int64_t rows, std::int64_t heads,
                           std::int64_t dim) {
      return e_.tensor(name, Role::output, e_.storage, rows, heads, dim);
    };
    return {shard(name::dq, q_shard(), p_.query_heads, p_.head_dim),
            shard(name::dk, k_shard(), p_.kv_heads, p_.head_dim),
            shard(name::dv, k_shard(), p_.kv_heads, p_.value_dim)};
  }

  void store_gradients(Home& home) {
    if (e_.storage == e_.accumulate) {
      e_.settle(home.out);
      return emit_join_late(e_, home);
    }
    const auto whole = [&](int to) {
      return std::vector<Store>{{e_.all_rows({to}), e_.b.all(to, Access::write)}};
    };
    const auto [dq, dk, dv] = gradients();
    emit_store_gradients(e_, home, {whole(dq), whole(dk), whole(dv)});
  }

  /// Replicated KV heads are summed over their replicas, in the accumulate dtype; all else travels
  /// in the storage dtype, in which it ends.
  Outbound exchange_gradients(Home& home, int dq, int dk, int dv) {
    const bool replicated = p_.kv_heads % u_ != 0, same = e_.storage == e_.accumulate;
    std::vector<Exchanged> tensors{
        {dq, home.out[0], true}, {dk, home.dkeys[0], false}, {dv, home.dkeys[1], false}};
    const int converted = same ? 0 : replicated ? 1 : 3;
    if (converted < 3) emit_join_late(e_, home);
    std::array<std::vector<Store>, 3> stores;
    const std::array names{"dq.chunk", "dk.chunk", "dv.chunk"};
    for (std::size_t i = 0; std::cmp_less(i, converted); ++i)
      stores[i] = store_parts(tensors[i], names[i]);
    emit_store_gradients(e_, home, stores);
    if (replicated) {
      if (!same) {
        tensors[1].shard = sum_of_replicas("dk.sum", p_.head_dim);
        tensors[2].shard = sum_of_replicas("dv.sum", p_.value_dim);
      }
      clear({tensors[1].shard, tensors[2].shard});
    }
    emit_own(e_, {tensors.begin() + converted, tensors.end()});
    Outbound out = emit_exit(e_, tensors, 0, key_of(e_.slice) + u_);
    if (!replicated || same) return out;
    emit_unpack(e_, out);
    e_.copy(label::backward_store,
            {e_.b.all(tensors[1].shard, Access::read), e_.b.all(dk, Access::write),
             e_.b.all(tensors[2].shard, Access::read), e_.b.all(dv, Access::write)});
    return {};
  }

  /// Gives a gradient a chunk in the storage dtype to travel from; this rank's own rows go straight
  /// to their place in the shard.
  std::vector<Store> store_parts(Exchanged& x, const char* name) {
    const plan::Buffer like = e_.info(x.chunk);
    x.chunk = e_.tensor(e_.of_slice(name), Role::scratch, e_.storage, like.shape[0], like.shape[1],
                        like.shape[2]);
    const Range own = shard_rows(e_, x, e_.inner);
    std::vector<Store> out{{own, own_place(e_, x)}};
    for (const Range rows : {Range{0, own.begin}, Range{own.end, like.shape[0]}})
      if (!rows.empty()) out.push_back({rows, e_.b.rows(x.chunk, Access::write, rows)});
    return out;
  }

  int sum_of_replicas(const char* name, std::int64_t dim) {
    return e_.tensor(name, Role::scratch, e_.accumulate, k_shard(), p_.kv_heads, dim);
  }

  void clear(const Bundle& result) {
    e_.begin(result, e_.outer);
    e_.settle(result);
  }

  int sink_input() {
    if (sink_ < 0)
      sink_ = e_.b.buffer({name::sink, Role::input, e_.accumulate, {p_.query_heads, 1, 1}, false});
    return sink_;
  }

  /// Sinks are applied after all merges (brief 1.4): inside the partials they would count n times.
  void apply_sink(const Bundle& out) {
    std::vector<plan::Use> list{e_.b.rows(sink_input(), Access::read, e_.heads.query)};
    for (const plan::Use& use : e_.uses(out, Access::update)) list.push_back(use);
    e_.b.compute(e_.compute_queue, label::forward_sink, plan::chunk(e_.outer),
                 {"attention.sink", 0, static_cast<double>(e_.bytes(list))}, list);
  }

  void sink_gradient(int lse, int delta) {
    if (dsink_ < 0) {
      dsink_ =
          e_.b.buffer({name::dsink, Role::output, e_.accumulate, {p_.query_heads, 1, 1}, false});
      clear({dsink_});
    }
    const std::vector<plan::Use> list{e_.b.rows(sink_input(), Access::read, e_.heads.query),
                                      e_.b.all(lse, Access::read), e_.b.all(delta, Access::read),
                                      e_.b.rows(dsink_, Access::update, e_.heads.query)};
    e_.b.compute(e_.compute_queue, label::backward_sink, plan::chunk(e_.outer),
                 {"attention.sink_grad", 0, static_cast<double>(e_.bytes(list))}, list);
  }

  void reduce_sink() {
    if (p_.sink && e_.c.split.n > 1)
      e_.b.all_reduce(e_.comm_queue, label::reduce_sink, {}, last_axis_, 3 * u_,
                      {e_.b.all(dsink_, Access::update)});
  }

  Emit e_;
  const Problem& p_;
  const Lockstep& order_;
  const Costs& costs_;
  const int u_, last_axis_;
  int sink_ = -1, dsink_ = -1;  // buffers, once they are there
};

std::vector<plan::WorkItem> coverage(const Context& c) {
  std::vector<plan::WorkItem> items;
  const auto label = c.pass == Pass::forward ? label::forward_tile : label::backward_tile;
  const int parts = c.split.u * c.split.slices;
  for (int q = 0; q < c.split.r; ++q)
    for (int k = 0; k < c.split.r; ++k)
      for (int i = 0; i < parts && c.map.area(q, k) > 0; ++i)
        items.push_back({label, plan::tile(q * parts + i, k)});
  return items;
}

}  // namespace

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
  const int q = index.i / (c.split.u * c.split.slices);
  const Extent& seen = c.map.tile(q, index.j);
  const Rows keys = key_chunk(c.problem, c.split, index.j);
  const bool sent = c.scheme.kind == SchemeKind::all_gather && index.j != rank;
  return {slice(query_chunk(c.problem, c.split, q), seen.queries),
          sent ? slice(keys, needed_keys(c, q, index.j)) : slice(keys, seen.keys)};
}

}  // namespace tessera::attention
