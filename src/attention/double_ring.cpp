// SPDX-License-Identifier: Apache-2.0
// Double ring (LoongTrain; attention brief 3.5): ranks form n / w inner rings of w. While an inner
// ring passes its chunks round, every rank's own chunk moves one inner ring further on a queue of
// its own. Backward hands dK, dV home the same two ways, so that the volume equals the flat ring's.
#include <fmt/format.h>

#include "attention/emit.hpp"

namespace tessera::attention {

namespace {

class DoubleRing {
 public:
  DoubleRing(Emit& e, Home& home, const Costs& costs, int first_axis)
      : e_(e),
        home_(home),
        w_(e.c.scheme.inner),
        rings_(e.c.split.n / w_),
        ring_(e.rank / w_),
        place_(e.rank % w_),
        inner_axis_(first_axis),
        outer_axis_(first_axis + (w_ > 1 ? 1 : 0)),
        order_(lockstep(1, w_, e.c.pass, costs)),
        pools_(e),
        keys_pool_([&e](int i) { return e.new_keys(fmt::format(".outer{}", i), e.c.k_rows); }),
        dkeys_pool_([&e](int i) { return e.new_dkeys(fmt::format(".home{}", i), e.c.k_rows); }),
        staging_pool_(
            [&e](int i) { return e.new_dkeys(fmt::format(".outer_stage{}", i), e.c.k_rows); }),
        keys_(rings_),
        dkeys_(rings_),
        queue_(e.comm_queue) {
    if (rings_ > 1) queue_ = e.b.queue(plan::QueueKind::comm, "comm.outer");
    keys_[0] = home.keys;
    dkeys_[0] = home.dkeys;
  }

  void run() {
    for (int p = 0; p < rings_; ++p) {
      if (p + 1 < rings_) send_keys_on(p);
      if (p > 0 && e_.backward && reach_outer(chunk(p)).first <= p) {
        dkeys_[p] = dkeys_pool_.take(p, p + 1);
        // Only what is added to a sum that comes in can do without rows that nobody here touches.
        e_.begin(dkeys_[p], chunk(p),
                 arrived_.empty() ? e_.all_rows(dkeys_[p]) : touched(ring_, chunk(p)));
      }
      inner_ring(p);
      if (e_.backward && p > 0) send_dkeys_on(p);
    }
  }

 private:
  int rank_at(int ring, int place) const {
    return ((ring + rings_) % rings_) * w_ + (place + w_) % w_;
  }
  /// The chunk that stands at this rank's place after p outer hops.
  int chunk(int p) const { return rank_at(ring_ - p, place_); }
  int next_outer() const { return rank_at(ring_ + 1, place_); }
  int prev_outer() const { return rank_at(ring_ - 1, place_); }

  /// Rows of chunk x that an inner ring computes with.
  Range touched(int ring, int x) const {
    Range rows;
    for (int i = 0; i < w_; ++i) rows = hull(rows, e_.c.map.tile(rank_at(ring, i), x).keys);
    return rows;
  }
  Reach reach_outer(int x) const {
    return reach_of(rings_, [&](int d) { return touched(x / w_ + d, x); });
  }

  void send_keys_on(int p) {
    const int mine = chunk(p), theirs = chunk(p + 1), group = e_.b.new_group();
    if (reach_outer(mine).last >= p + 1)
      e_.b.send(queue_, group, label::shift_kv, plan::chunk(mine), outer_axis_, next_outer(), p,
                e_.uses(keys_[p], plan::Access::read));
    if (reach_outer(theirs).last >= p + 1) {
      keys_[p + 1] = keys_pool_.take(p, p + 1);
      e_.b.recv(queue_, group, label::shift_kv, plan::chunk(theirs), outer_axis_, prev_outer(), p,
                e_.uses(keys_[p + 1], plan::Access::write));
    }
  }

  void inner_ring(int p) {
    Family q;
    q.chunk = [this](int) { return e_.rank; };
    q.reach = [](int) { return Reach{}; };
    Family kv;
    kv.axis = inner_axis_;
    kv.size = w_;
    kv.next = rank_at(ring_, place_ + 1);
    kv.prev = rank_at(ring_, place_ - 1);
    kv.chunk = [this, p](int d) { return rank_at(ring_ - p + rings_, place_ - d); };
    kv.reach = [this](int x) {
      return reach_of(w_, [&](int d) { return e_.c.map.tile(rank_at(ring_, x % w_ + d), x).keys; });
    };
    Home phase{home_.queries, keys_[p], home_.out, dkeys_[p]};
    emit_mesh(e_, q, kv, phase, order_, pools_, p);
    for (const Late& x : phase.late) e_.join(x.dkeys, dkeys_[p], chunk(p), x.pieces.front().rows);
  }

  /// Adds this phase's sum to what came in for its chunk and sends it to the next inner ring.
  void send_dkeys_on(int p) {
    const int mine = chunk(p), theirs = chunk((p + 1) % rings_), group = e_.b.new_group();
    if (!arrived_.empty()) {
      if (!e_.untouched(dkeys_[p])) e_.join(dkeys_[p], arrived_, mine, touched(ring_, mine));
      dkeys_[p] = arrived_;
    }
    arrived_.clear();
    const int key = rings_ + p;
    if (reach_outer(mine).first <= p)
      e_.b.send(queue_, group, label::shift_dkv, plan::chunk(mine), outer_axis_, next_outer(), key,
                e_.uses(dkeys_[p], plan::Access::read));
    if (reach_outer(theirs).first <= p) {
      arrived_ = staging_pool_.take(p, p + 1);
      e_.b.recv(queue_, group, label::shift_dkv, plan::chunk(theirs), outer_axis_, prev_outer(),
                key, e_.uses(arrived_, plan::Access::write));
    }
    if (p + 1 < rings_ || arrived_.empty()) return;
    const Range rows = reach_outer(theirs).rows;
    home_.late.push_back({arrived_, {{rows, rows.begin}}});
  }

  Emit& e_;
  Home& home_;
  const int w_, rings_, ring_, place_, inner_axis_, outer_axis_;
  const Lockstep order_;
  Pools pools_;
  Pool keys_pool_, dkeys_pool_, staging_pool_;
  std::vector<Bundle> keys_, dkeys_;  // by phase
  Bundle arrived_;
  int queue_;
};

}  // namespace

void emit_double_ring(Emit& e, Home& home, const Costs& costs, int first_axis) {
  DoubleRing(e, home, costs, first_axis).run();
}

}  // namespace tessera::attention
