// SPDX-License-Identifier: Apache-2.0
// The mesh body: Q chunks travel along one ring, KV chunks along another, partial results travel
// home behind them (attention brief 2.2, 2.3). A ring is the mesh with a = 1. The published
// definitions fix the tiles; order and motion are our reconstruction (brief 2, status).
#include <algorithm>
#include <deque>

#include "attention/emit.hpp"

namespace tessera::attention {

namespace {

/// The results of one family by distance: what tiles sum up here, until the running sum of the
/// members before comes in and goes on with it. Sums of the own chunk (distance 0) stay.
struct Results {
  Results(const Family& f, Pool& p, std::string_view label_, const Bundle& own, int end)
      : family(f), pool(p), label(label_), at(f.size), rows(f.size), leaves(f.size, never) {
    at[0] = own;
    leaves[0] = end;
  }
  static constexpr int never = -1;

  /// Slot in which the sum of the members before comes in.
  int& comes(int d) { return leaves[d > 0 ? d - 1 : family.size - 1]; }
  /// Is there such a sum?
  bool joined(int d) const {
    return family.reach(family.chunk(d)).first < (d > 0 ? d : family.size);
  }

  const Family& family;
  Pool& pool;
  std::string_view label;
  std::vector<Bundle> at;   ///< empty: not here
  std::vector<Range> rows;  ///< that tiles touch before the sum of the others comes in
  std::vector<int> leaves;  ///< slot in which the sum goes to the next member
  Bundle arrived;
};

/// Emits the slots of one schedule for one rank.
class Body {
 public:
  Body(Emit& e, const Family& q, const Family& kv, Home& home, const Lockstep& order, Pools& pools,
       int phase)
      : e_(e),
        home_(home),
        q_(q),
        kv_(kv),
        order_(order),
        pools_(pools),
        base_(phase * (static_cast<int>(order.slots.size()) + 1)),
        queries_(q.size),
        keys_(kv.size),
        q_last_(q.size),
        kv_last_(kv.size),
        out_(q, pools.out, e.backward ? label::shift_dq : label::shift_o, home.out,
             static_cast<int>(order.slots.size())),
        dkeys_(kv, pools.dkeys, label::shift_dkv, home.dkeys,
               static_cast<int>(order.slots.size())) {
    queries_[0] = home.queries;
    keys_[0] = home.keys;
    find_last_uses();
  }

  void run() {
    for (now_ = 0; now_ < std::ssize(order_.slots); ++now_) {
      const Slot& slot = order_.slots[static_cast<std::size_t>(now_)];
      transfer(slot);
      for (const Block& x : slot.blocks) block(x);
      join(slot);
    }
  }

 private:
  void find_last_uses() {
    auto later = [](int& last, int t) { last = std::max(last, t); };
    auto touch = [](Results& r, int d, Range rows) {
      if (d > 1 && r.comes(d) == Results::never) r.rows[d] = hull(r.rows[d], rows);
    };
    for (int t = 0; t < std::ssize(order_.slots); ++t) {
      const Slot& s = order_.slots[static_cast<std::size_t>(t)];
      for (const Block& x : s.blocks) {
        later(q_last_[x.s], t), later(kv_last_[x.t], t);
        const Extent& seen = e_.c.map.tile(q_.chunk(x.s), kv_.chunk(x.t));
        touch(out_, x.s, seen.queries), touch(dkeys_, x.t, seen.keys);
      }
      if (s.op == Transfer::q) later(q_last_[s.distance - 1], t), later(q_last_[s.distance], t);
      if (s.op == Transfer::kv) later(kv_last_[s.distance - 1], t), later(kv_last_[s.distance], t);
      if (s.op == Transfer::out) out_.leaves[s.distance] = t;
      if (s.op == Transfer::dkv) dkeys_.leaves[s.distance] = t;
    }
  }

  void transfer(const Slot& slot) {
    switch (slot.op) {
      case Transfer::q:
        return shift(q_, label::shift_q, slot.distance, queries_, pools_.queries, q_last_);
      case Transfer::kv:
        return shift(kv_, label::shift_kv, slot.distance, keys_, pools_.keys, kv_last_);
      case Transfer::out:
        return hand_on(out_, slot.distance);
      case Transfer::dkv:
        return hand_on(dkeys_, slot.distance);
      case Transfer::none:
        break;
    }
  }

  /// Inputs move on: sends the chunk of distance d - 1, receives that of distance d.
  void shift(const Family& f, std::string_view label, int d, std::vector<Bundle>& held, Pool& pool,
             const std::vector<int>& last) {
    const int mine = f.chunk(d - 1), theirs = f.chunk(d);
    const int group = e_.b.new_group();
    if (f.reach(mine).last >= d)
      e_.b.send(e_.comm_queue, group, label, plan::chunk(mine), f.axis, f.next, base_ + now_,
                e_.uses(held[d - 1], plan::Access::read));
    if (f.reach(theirs).last >= d) {
      held[d] = pool.take(base_ + now_, base_ + last[d]);
      e_.b.recv(e_.comm_queue, group, label, plan::chunk(theirs), f.axis, f.prev, base_ + now_,
                e_.uses(held[d], plan::Access::write));
    }
  }

  /// Results go towards their owner: sends the running sum of distance d, receives that of
  /// distance d + 1, or this rank's own when d + 1 closes the ring.
  void hand_on(Results& r, int d) {
    const Family& f = r.family;
    const int next = (d + 1) % f.size, mine = f.chunk(d), theirs = f.chunk(next);
    const int group = e_.b.new_group();
    if (f.reach(mine).first <= d)
      e_.b.send(e_.comm_queue, group, r.label, plan::chunk(mine), f.axis, f.next, base_ + now_,
                e_.uses(r.at[d], plan::Access::read));
    r.arrived.clear();
    if (!r.joined(next)) return;
    r.arrived = r.pool.take(base_ + now_, base_ + r.leaves[next]);
    e_.b.recv(e_.comm_queue, group, r.label, plan::chunk(theirs), f.axis, f.prev, base_ + now_,
              e_.uses(r.arrived, plan::Access::write));
  }

  /// Adds what tiles summed up here to what came in, which goes on: few rows where the mask lets
  /// few through. To the own results it is the other way round; own dK, dV wait for their sum.
  void join(const Slot& slot) {
    if (slot.op != Transfer::out && slot.op != Transfer::dkv) return;
    Results& r = slot.op == Transfer::out ? out_ : dkeys_;
    if (r.arrived.empty()) return;
    const int d = (slot.distance + 1) % r.family.size, chunk = r.family.chunk(d);
    if (d > 0) {
      if (!r.at[d].empty()) e_.join(r.at[d], r.arrived, chunk, r.rows[d]);
      r.at[d] = r.arrived;
      return;
    }
    const Range rows = r.family.reach(chunk).rows;
    if (slot.op == Transfer::out)
      e_.join(r.arrived, home_.out, chunk, rows);
    else
      home_.late.push_back({r.arrived, {{rows, rows.begin}}});
  }

  void block(Block x) {
    const int qc = q_.chunk(x.s), kc = kv_.chunk(x.t);
    const Extent& seen = e_.c.map.tile(qc, kc);
    if (seen.area == 0) return;
    static const Bundle none;
    const Bundle& out = result_at(out_, x.s);
    e_.tile(qc, kc, seen, queries_[x.s], keys_[x.t], out,
            e_.backward ? result_at(dkeys_, x.t) : none);
  }

  /// Only what is added to a sum that comes in can do without the rows that no tile touches.
  const Bundle& result_at(Results& r, int d) {
    if (!r.at[d].empty()) return r.at[d];
    const bool joined = r.joined(d);
    r.at[d] = r.pool.take(base_ + now_, base_ + (joined ? r.comes(d) : r.leaves[d]));
    e_.begin(r.at[d], r.family.chunk(d), joined ? r.rows[d] : e_.all_rows(r.at[d]));
    return r.at[d];
  }

  Emit& e_;
  Home& home_;
  const Family &q_, &kv_;
  const Lockstep& order_;
  Pools& pools_;
  const int base_;
  int now_ = 0;
  std::vector<Bundle> queries_, keys_;  // by distance; empty: not here
  std::vector<int> q_last_, kv_last_;
  Results out_, dkeys_;
};

}  // namespace

void emit_mesh(Emit& e, const Family& q, const Family& kv, Home& home, const Lockstep& order,
               Pools& pools, int phase) {
  Body(e, q, kv, home, order, pools, phase).run();
}

void emit_mesh_scheme(Emit& e, Home& home, const Lockstep& order, int first_axis) {
  const Split& s = e.c.split;
  const ChunkMap& map = e.c.map;
  const int a = e.c.scheme.a, b = e.c.scheme.b;
  const int row = e.outer / a, col = e.outer % a;
  auto member = [a](int r, int c) { return r * a + c; };

  Family q;
  q.axis = first_axis;
  q.size = a;
  q.next = s.rank_of(member(row, (col + 1) % a), e.inner);
  q.prev = s.rank_of(member(row, (col + a - 1) % a), e.inner);
  q.chunk = [=](int d) { return member(row, (col + a - d) % a); };
  // A member works with Q chunk i when any KV chunk of its tile column is seen from it.
  std::vector<Reach> q_reach(a);
  for (int i = 0; i < a; ++i)
    q_reach[i] = reach_of(a, [&](int d) {
      Range rows;
      for (int t = 0; t < b; ++t)
        rows = hull(rows, map.tile(member(row, i), member(t, (i + d) % a)).queries);
      return rows;
    });
  q.reach = [=](int chunk) { return q_reach[chunk % a]; };

  Family kv;
  kv.axis = first_axis + (a > 1 ? 1 : 0);
  kv.size = b;
  kv.next = s.rank_of(member((row + 1) % b, col), e.inner);
  kv.prev = s.rank_of(member((row + b - 1) % b, col), e.inner);
  kv.chunk = [=](int d) { return member((row + b - d) % b, col); };
  std::vector<Reach> kv_reach(b);
  for (int j = 0; j < b; ++j)
    kv_reach[j] = reach_of(b, [&](int d) {
      Range rows;
      for (int t = 0; t < a; ++t)
        rows = hull(rows, map.tile(member((j + d) % b, t), member(j, col)).keys);
      return rows;
    });
  kv.reach = [=](int chunk) { return kv_reach[chunk / a]; };

  Pools pools(e);
  emit_mesh(e, q, kv, home, order, pools);
}

}  // namespace tessera::attention
