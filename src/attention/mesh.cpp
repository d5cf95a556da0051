// SPDX-License-Identifier: Apache-2.0
// The mesh body: Q chunks travel along one ring, KV chunks along another, partial results travel
// home behind them (attention brief 2.2, 2.3). A ring is the mesh with a = 1. The published
// definitions fix the tiles; order and motion are our reconstruction (brief 2, status).
#include <algorithm>
#include <deque>

#include "attention/emit.hpp"

namespace tessera::attention {

namespace {

/// Emits the slots of one schedule for one rank.
class Body {
 public:
  Body(Emit& e, const Family& q, const Family& kv, const Home& home, const Lockstep& order,
       Pools& pools, int phase)
      : e_(e),
        q_(q),
        kv_(kv),
        order_(order),
        pools_(pools),
        base_(phase * (static_cast<int>(order.slots.size()) + 1)),
        queries_(q.size),
        keys_(kv.size),
        out_(q.size),
        dkeys_(kv.size),
        q_last_(q.size),
        kv_last_(kv.size),
        out_last_(q.size),
        dkv_last_(kv.size) {
    queries_[0] = home.queries;
    keys_[0] = home.keys;
    out_[0] = home.out;
    dkeys_[0] = home.dkeys;
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
    for (int t = 0; t < std::ssize(order_.slots); ++t) {
      const Slot& s = order_.slots[static_cast<std::size_t>(t)];
      for (const Block& x : s.blocks) {
        later(q_last_[x.s], t), later(kv_last_[x.t], t);
        later(out_last_[x.s], t), later(dkv_last_[x.t], t);
      }
      if (s.op == Transfer::q) later(q_last_[s.distance - 1], t), later(q_last_[s.distance], t);
      if (s.op == Transfer::kv) later(kv_last_[s.distance - 1], t), later(kv_last_[s.distance], t);
      if (s.op == Transfer::out) {
        later(out_last_[s.distance], t);
        if (s.distance + 1 < q_.size) later(out_last_[s.distance + 1], t);
      }
      if (s.op == Transfer::dkv) {
        later(dkv_last_[s.distance], t);
        if (s.distance + 1 < kv_.size) later(dkv_last_[s.distance + 1], t);
      }
    }
  }

  void transfer(const Slot& slot) {
    switch (slot.op) {
      case Transfer::q:
        return shift(q_, label::shift_q, slot.distance, queries_, pools_.queries, q_last_);
      case Transfer::kv:
        return shift(kv_, label::shift_kv, slot.distance, keys_, pools_.keys, kv_last_);
      case Transfer::out:
        return hand_on(q_, e_.backward ? label::shift_dq : label::shift_o, slot.distance, out_,
                       pools_.staging_out);
      case Transfer::dkv:
        return hand_on(kv_, label::shift_dkv, slot.distance, dkeys_, pools_.staging_dkeys);
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

  /// Results go towards their owner: sends the running result of distance d, receives that of
  /// distance d + 1, or this rank's own when d + 1 closes the ring.
  void hand_on(const Family& f, std::string_view label, int d, std::vector<Bundle>& results,
               Pool& staging) {
    const int mine = f.chunk(d), theirs = f.chunk((d + 1) % f.size);
    const int group = e_.b.new_group();
    if (f.reach(mine).first <= d)
      e_.b.send(e_.comm_queue, group, label, plan::chunk(mine), f.axis, f.next, base_ + now_,
                e_.uses(results[d], plan::Access::read));
    arrived_.clear();
    if (f.reach(theirs).first <= d) {
      arrived_ = staging.take(base_ + now_, base_ + now_);
      e_.b.recv(e_.comm_queue, group, label, plan::chunk(theirs), f.axis, f.prev, base_ + now_,
                e_.uses(arrived_, plan::Access::write));
    }
  }

  void join(const Slot& slot) {
    if (slot.op != Transfer::out && slot.op != Transfer::dkv) return;
    if (arrived_.empty()) return;
    const bool rows = slot.op == Transfer::out;
    const Family& f = rows ? q_ : kv_;
    const int d = (slot.distance + 1) % f.size;
    if (rows)
      e_.join_out(arrived_, out_at(d), f.chunk(d));
    else
      e_.join_dkeys(arrived_, dkeys_at(d), f.chunk(d));
  }

  void block(Block x) {
    const int qc = q_.chunk(x.s), kc = kv_.chunk(x.t);
    const std::int64_t area = e_.c.map.area(qc, kc);
    if (area == 0) return;
    const Bundle& out = out_at(x.s);
    static const Bundle none;
    e_.tile(qc, kc, area, queries_[x.s], keys_[x.t], out, e_.backward ? dkeys_at(x.t) : none);
  }

  const Bundle& out_at(int d) {
    if (out_[d].empty()) {
      out_[d] = pools_.out.take(base_ + now_, base_ + out_last_[d]);
      e_.clear_out(out_[d], q_.chunk(d));
    }
    return out_[d];
  }

  const Bundle& dkeys_at(int d) {
    if (dkeys_[d].empty()) {
      dkeys_[d] = pools_.dkeys.take(base_ + now_, base_ + dkv_last_[d]);
      e_.clear_dkeys(dkeys_[d], kv_.chunk(d));
    }
    return dkeys_[d];
  }

  Emit& e_;
  const Family &q_, &kv_;
  const Lockstep& order_;
  Pools& pools_;
  const int base_;
  int now_ = 0;
  std::vector<Bundle> queries_, keys_, out_, dkeys_;  // by distance; empty: not here
  std::vector<int> q_last_, kv_last_, out_last_, dkv_last_;
  Bundle arrived_;
};

}  // namespace

void emit_mesh(Emit& e, const Family& q, const Family& kv, const Home& home, const Lockstep& order,
               Pools& pools, int phase) {
  Body(e, q, kv, home, order, pools, phase).run();
}

void emit_mesh_scheme(Emit& e, const Home& home, const Lockstep& order, int first_axis) {
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
      for (int t = 0; t < b; ++t)
        if (map.area(member(row, i), member(t, (i + d) % a)) > 0) return true;
      return false;
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
      for (int t = 0; t < a; ++t)
        if (map.area(member((j + d) % b, t), member(j, col)) > 0) return true;
      return false;
    });
  kv.reach = [=](int chunk) { return kv_reach[chunk / a]; };

  Pools pools(e);
  emit_mesh(e, q, kv, home, order, pools);
}

}  // namespace tessera::attention
