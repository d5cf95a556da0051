// SPDX-License-Identifier: Apache-2.0
// All-gather of KV (attention brief 3.2) in the form of brief 6.5 (4): every rank sends each other
// rank just the key rows that its queries see, directly; with a full mask that is the all-gather.
// Backward gathers again and sends partial dK, dV rows back to their owners (reduce-scatter).
#include <fmt/format.h>

#include "attention/emit.hpp"

namespace tessera::attention {

std::vector<Range> needed_keys(const Context& c, int p, int j) {
  if (c.map.area(p, j) == 0) return {};
  return columns(
      c.problem.mask.cut(query_chunk(c.problem, c.split, p), key_chunk(c.problem, c.split, j)));
}

namespace {

std::int64_t total(const std::vector<Range>& ranges) {
  std::int64_t n = 0;
  for (const Range& r : ranges) n += r.size();
  return n;
}

class AllGather {
 public:
  AllGather(Emit& e, Home& home, int axis)
      : e_(e),
        home_(home),
        axis_(axis),
        n_(e.c.split.n),
        keys_(n_),
        back_(n_),
        need_(n_),
        asked_(n_) {
    for (int d = 1; d < n_; ++d) {
      need_[d] = needed_keys(e.c, e.rank, from(d));
      asked_[d] = needed_keys(e.c, to(d), e.rank);
    }
  }

  void run() {
    for (int d = 1; d < n_; ++d) gather(d);
    if (!e_.backward) tile(0);
    for (int d = 1; d < n_; ++d) {
      const Bundle partial = tile(d);
      if (e_.backward) scatter(d, partial);
    }
    if (!e_.backward) return;
    tile(0);  // beside the last transfer of gradients
    for (int d = 1; d < n_; ++d) keep(d);
  }

 private:
  int to(int d) const { return (e_.rank + d) % n_; }
  int from(int d) const { return (e_.rank + n_ - d) % n_; }

  /// Uses of both tensors of a bundle, range by range, so that both sides cut a message alike.
  std::vector<plan::Use> part(const Bundle& bundle, const std::vector<Range>& ranges,
                              plan::Access access) const {
    std::vector<plan::Use> out;
    for (int id : bundle)
      for (const Range& r : ranges) out.push_back(e_.b.rows(id, access, r));
    return out;
  }

  /// Where the ranges lie when they are stored one after the other.
  static std::vector<Range> packed(const std::vector<Range>& ranges) {
    std::vector<Range> out;
    std::int64_t at = 0;
    for (const Range& r : ranges) {
      out.push_back({at, at + r.size()});
      at += r.size();
    }
    return out;
  }

  void gather(int d) {
    const int group = e_.b.new_group();
    if (!asked_[d].empty())
      e_.b.send(e_.comm_queue, group, label::gather_kv, plan::chunk(e_.rank), axis_, to(d), d,
                part(home_.keys, asked_[d], plan::Access::read));
    if (need_[d].empty()) return;
    keys_[d] = e_.new_keys(fmt::format(".from{}", from(d)), total(need_[d]));
    e_.b.recv(e_.comm_queue, group, label::gather_kv, plan::chunk(from(d)), axis_, from(d), d,
              part(keys_[d], packed(need_[d]), plan::Access::write));
  }

  /// The tile against the keys of distance d; returns its dK, dV when they belong to another rank.
  Bundle tile(int d) {
    Extent seen = e_.c.map.tile(e_.rank, from(d));
    if (seen.area == 0) return {};
    Bundle dkeys = home_.dkeys;
    if (d > 0) seen.keys = {0, total(need_[d])};
    if (d > 0 && e_.backward) {
      dkeys = e_.new_dkeys(fmt::format(".for{}", from(d)), seen.keys.end);
      e_.begin(dkeys, from(d));
    }
    e_.tile(e_.rank, from(d), seen, home_.queries, d == 0 ? home_.keys : keys_[d], home_.out,
            dkeys);
    return dkeys;
  }

  void scatter(int d, const Bundle& partial) {
    const int group = e_.b.new_group(), key = n_ + d;
    if (!partial.empty())
      e_.b.send(e_.comm_queue, group, label::scatter_dkv, plan::chunk(from(d)), axis_, from(d), key,
                part(partial, packed(need_[d]), plan::Access::read));
    if (asked_[d].empty()) return;
    back_[d] = e_.new_dkeys(fmt::format(".back{}", to(d)), total(asked_[d]));
    e_.b.recv(e_.comm_queue, group, label::scatter_dkv, plan::chunk(e_.rank), axis_, to(d), key,
              part(back_[d], packed(asked_[d]), plan::Access::write));
  }

  void keep(int d) {
    if (back_[d].empty()) return;
    Late late{back_[d], {}};
    const std::vector<Range> stored = packed(asked_[d]);
    for (std::size_t i = 0; i < stored.size(); ++i)
      late.pieces.push_back({asked_[d][i], stored[i].begin});
    home_.late.push_back(std::move(late));
  }

  Emit& e_;
  Home& home_;
  const int axis_, n_;
  std::vector<Bundle> keys_, back_;               // by distance
  std::vector<std::vector<Range>> need_, asked_;  // rows of from(d) for me; my rows for to(d)
};

}  // namespace

void emit_all_gather(Emit& e, Home& home, int first_axis) { AllGather(e, home, first_axis).run(); }

}  // namespace tessera::attention
