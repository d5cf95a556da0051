// SPDX-License-Identifier: Apache-2.0
#include "attention/lockstep.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace tessera::attention {

namespace {

class Greedy {
 public:
  Greedy(int a, int b, Pass pass, const Costs& c, bool eager)
      : a_(a),
        b_(b),
        backward_(pass == Pass::backward),
        c_(c),
        eager_(eager),
        done_(static_cast<std::size_t>(a) * b),
        row_left_(a, b),
        col_left_(b, a) {}

  Lockstep run() {
    while (transfers_left()) {
      const auto [op, time] = pick();
      Slot slot{op, 0, {}};
      if (op == Transfer::none) {
        slot.blocks = take_ready(1);
        out_.makespan += c_.block;
      } else {
        const int room = eager_ ? a_ * b_ : static_cast<int>(std::ceil(time / c_.block - 1e-9));
        slot.blocks = take_ready(room);
        slot.distance = advance(op);
        out_.makespan += std::max(time, c_.block * static_cast<double>(slot.blocks.size()));
        comm_ += time;
      }
      out_.slots.push_back(std::move(slot));
    }
    Slot rest{Transfer::none, 0, take_ready(a_ * b_)};
    out_.makespan += c_.block * static_cast<double>(rest.blocks.size());
    out_.slots.push_back(std::move(rest));
    out_.lower_bound = std::max(comm_, c_.block * a_ * b_);
    return std::move(out_);
  }

 private:
  bool out_left() const { return o_ < a_ - 1; }
  bool dkv_left() const { return backward_ && p_ < b_ - 1; }
  bool transfers_left() const { return q_ < a_ - 1 || k_ < b_ - 1 || out_left() || dkv_left(); }

  /// Most blocks unlocked per unit of time; results go only when no receive is left.
  std::pair<Transfer, double> pick() const {
    Transfer best = Transfer::none;
    double gain = 0, time = 0;
    auto offer = [&](Transfer op, double g, double t) {
      if (g > gain) best = op, gain = g, time = t;
    };
    if (q_ < a_ - 1) offer(Transfer::q, (k_ + 1) / c_.q, c_.q);
    if (k_ < b_ - 1) offer(Transfer::kv, (q_ + 1) / c_.kv, c_.kv);
    if (best != Transfer::none) return {best, time};
    if (out_left() && row_left_[o_ + 1] == 0) offer(Transfer::out, 1 / c_.out, c_.out);
    if (dkv_left() && col_left_[p_ + 1] == 0) offer(Transfer::dkv, 1 / c_.dkv, c_.dkv);
    return {best, time};
  }

  /// Distance that the transfer concerns; counts it as done.
  int advance(Transfer op) {
    switch (op) {
      case Transfer::q:
        return ++q_;
      case Transfer::kv:
        return ++k_;
      case Transfer::out:
        return ++o_;
      case Transfer::dkv:
        return ++p_;
      case Transfer::none:
        break;
    }
    return 0;
  }

  /// Blocks that complete the next row or column to be sent come first, local ones last.
  auto priority(Block x) const {
    const int far = a_ * b_ + 1;
    int left = far;
    if (out_left() && x.s == o_ + 1) left = std::min(left, row_left_[x.s]);
    if (dkv_left() && x.t == p_ + 1) left = std::min(left, col_left_[x.t]);
    if (backward_) return std::tuple(left, (x.s == 0) + (x.t == 0), x.s + x.t, x.s);
    return std::tuple(x.s == 0 ? a_ : x.s, x.t, 0, 0);
  }

  std::vector<Block> take_ready(int room) {
    std::vector<Block> ready;
    for (int s = 0; s <= q_; ++s)
      for (int t = 0; t <= k_; ++t)
        if (!done_[index(s, t)]) ready.push_back({s, t});
    const auto n = std::min(ready.size(), static_cast<std::size_t>(room));
    std::partial_sort(ready.begin(), ready.begin() + static_cast<std::ptrdiff_t>(n), ready.end(),
                      [&](Block x, Block y) { return priority(x) < priority(y); });
    ready.resize(n);
    for (Block x : ready) {
      done_[index(x.s, x.t)] = true;
      --row_left_[x.s];
      --col_left_[x.t];
    }
    return ready;
  }

  std::size_t index(int s, int t) const { return static_cast<std::size_t>(s) * b_ + t; }

  int a_, b_;
  bool backward_;
  Costs c_;
  bool eager_;
  std::vector<bool> done_;
  std::vector<int> row_left_, col_left_;
  int q_ = 0, k_ = 0, o_ = 0, p_ = 0;  // Q and KV received; O or dQ, dKV sent
  double comm_ = 0;
  Lockstep out_;
};

}  // namespace

namespace {

/// The backward order of a ring: dK, dV of a step leave right after its block, so that two chunks
/// of each are enough however long the ring is. The greedy order would send them last of all.
/// `own_last`: the rank's own block runs beside the last dK, dV transfer instead of the first KV
/// transfer; in 16-bit storage with f32 gradients that hides the larger of the two.
Lockstep ring_backward(int b, const Costs& c, bool own_last) {
  Lockstep out;
  auto slot = [&](Transfer op, int distance, double time, std::vector<Block> blocks) {
    out.makespan += std::max(time, c.block * static_cast<double>(blocks.size()));
    out.slots.push_back({op, distance, std::move(blocks)});
  };
  auto keys = [&](int t, std::vector<Block> blocks) {
    if (t < b) return slot(Transfer::kv, t, c.kv, std::move(blocks));
    if (!blocks.empty()) slot(Transfer::none, 0, 0, std::move(blocks));
  };
  const std::vector<Block> own{{0, 0}}, none;
  keys(1, own_last ? none : own);
  if (b > 1) keys(2, {{0, 1}});
  for (int t = 1; t < b; ++t) {
    slot(Transfer::dkv, t, c.dkv,
         t + 1 < b  ? std::vector<Block>{{0, t + 1}}
         : own_last ? own
                    : none);
    keys(t + 2, {});
  }
  out.lower_bound = std::max(c.block * b, (c.kv + c.dkv) * (b - 1));
  return out;
}

}  // namespace

Lockstep lockstep(int a, int b, Pass pass, const Costs& costs, bool eager) {
  if (a == 1 && pass == Pass::backward) {
    Lockstep first = ring_backward(b, costs, false);
    if (b == 1) return first;
    Lockstep last = ring_backward(b, costs, true);
    return last.makespan < first.makespan ? last : first;
  }
  return Greedy(a, b, pass, costs, eager).run();
}

}  // namespace tessera::attention
