// SPDX-License-Identifier: Apache-2.0
#include "attention/gradients.hpp"

#include <algorithm>

namespace tessera::attention {

using plan::Access;
using plan::Use;

namespace {

/// The part of a use that belongs to `rows` when all of it belongs to `all`.
Use part_of(Use use, Range all, Range rows) {
  use.d0 = {use.d0.begin + rows.begin - all.begin, use.d0.begin + rows.end - all.begin};
  return use;
}

/// Stretches of `rows` within which the same pieces came in.
std::vector<Range> stretches(const Home& home, Range rows) {
  std::vector<std::int64_t> cuts{rows.begin, rows.end};
  for (const Late& late : home.late)
    for (const Late::Piece& x : late.pieces)
      for (const std::int64_t at : {x.rows.begin, x.rows.end})
        if (rows.begin < at && at < rows.end) cuts.push_back(at);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Range> out;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) out.push_back({cuts[i], cuts[i + 1]});
  return out;
}

/// What adds up to rows of dK (t = 0) or dV (t = 1), all of which the same pieces came in for.
std::vector<Use> terms_of(const Emit& e, const Home& home, std::size_t t, Range rows) {
  std::vector<Use> terms{e.b.rows(home.dkeys[t], Access::read, rows)};
  for (const Late& late : home.late)
    for (const Late::Piece& x : late.pieces)
      if (x.rows.covers(rows)) {
        const std::int64_t at = x.at + rows.begin - x.rows.begin;
        terms.push_back(e.b.rows(late.dkeys[t], Access::read, {at, at + rows.size()}));
      }
  return terms;
}

}  // namespace

void emit_join_late(Emit& e, Home& home) {
  e.settle(home.dkeys);
  for (const Late& late : home.late) {
    std::vector<Use> pairs;
    for (std::size_t t = 0; t < late.dkeys.size(); ++t)
      for (const Late::Piece& x : late.pieces) {
        pairs.push_back(e.b.rows(late.dkeys[t], Access::read, {x.at, x.at + x.rows.size()}));
        pairs.push_back(e.b.rows(home.dkeys[t], Access::update, x.rows));
      }
    e.add(label::backward_add, plan::chunk(e.outer), std::move(pairs));
  }
  home.late.clear();
}

void emit_store_gradients(Emit& e, Home& home, const std::array<std::vector<Store>, 3>& stores) {
  e.settle(home.out);
  e.settle(home.dkeys);
  if (home.late.size() >= ops::max_terms) emit_join_late(e, home);  // more than one sum takes
  std::vector<Use> copies;
  std::vector<std::vector<Use>> sums;
  for (const Store& s : stores[0])
    copies.insert(copies.end(), {e.b.rows(home.out[0], Access::read, s.rows), s.to});
  for (std::size_t t = 0; t < 2; ++t)
    for (const Store& s : stores[t + 1])
      for (const Range rows : stretches(home, s.rows)) {
        std::vector<Use> terms = terms_of(e, home, t, rows);
        const bool several = terms.size() > 1;
        terms.push_back(part_of(s.to, s.rows, rows));
        if (several)
          sums.push_back(std::move(terms));
        else
          copies.insert(copies.end(), terms.begin(), terms.end());
      }
  e.copy(label::backward_store, std::move(copies));
  for (std::vector<Use>& terms : sums)
    e.sum(label::backward_store, plan::chunk(e.outer), std::move(terms));
}

}  // namespace tessera::attention
