// SPDX-License-Identifier: Apache-2.0
// Problems and schemes that the attention tests go through.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "attention/scheme.hpp"
#include "base/error.hpp"

namespace tessera::test {

using namespace tessera::attention;

struct Case {
  std::string name;
  Problem problem;
};

inline Problem problem(MaskShape s, Mask mask, int hq, int hk, int d, int dv, DType type,
                       Layout layout) {
  Problem p;
  p.batch = s.batch, p.sequence = s.queries, p.key_sequence = s.keys;
  p.query_heads = hq, p.kv_heads = hk, p.head_dim = d, p.value_dim = dv;
  p.dtype = type, p.layout = layout, p.mask = std::move(mask);
  return p;
}

/// All schemes with all divisor pairs that fit the problem on n ranks.
inline std::vector<Scheme> schemes_for(const Problem& p, int n) {
  std::vector<Scheme> all{{SchemeKind::ring}, {SchemeKind::all_gather}, {SchemeKind::ulysses}};
  for (int slices : {2, 3}) {
    all.push_back({SchemeKind::ulysses});
    all.back().slices = slices;
  }
  for (int d = 1; d <= n; ++d) {
    if (n % d != 0) continue;
    all.push_back({SchemeKind::mesh, d, n / d});
    all.push_back({SchemeKind::double_ring, 0, 0, d});
    all.push_back({SchemeKind::unified, 0, 0, 0, d, SchemeKind::ring});
    for (int a = 1; a <= n / d; ++a)
      if (n / d % a == 0)
        all.push_back({SchemeKind::unified, a, n / d / a, 0, d, SchemeKind::mesh});
  }
  std::vector<Scheme> fit;
  for (const Scheme& s : all) try {
      validate(p, s, n);
      fit.push_back(s);
    } catch (const Error&) {
    }
  return fit;
}

/// One scheme of each kind, that with the squarest groups, where it fits the problem.
inline std::vector<Scheme> kinds_for(const Problem& p, int n) {
  std::vector<Scheme> out;
  const auto size = [](const Scheme& s) {
    return std::max({s.a, s.b, s.inner, s.ulysses}) * 2 - (s.outer == SchemeKind::mesh);
  };
  for (const Scheme& s : schemes_for(p, n)) {
    const auto same = std::find_if(out.begin(), out.end(),
                                   [&](const Scheme& other) { return other.kind == s.kind; });
    if (same == out.end())
      out.push_back(s);
    else if (size(s) < size(*same))
      *same = s;
  }
  return out;
}

/// A machine whose numbers make both sides of the greedy order matter.
inline plan::Machine test_machine() {
  plan::Machine m;
  m.name = "test";
  m.ranks_per_node = 4;
  m.intra = {1e-6, 1e9};
  m.inter = {1e-5, 1e8};
  m.memory_b_s = 1e10;
  for (const char* op : {"attention.forward", "attention.backward"})
    for (DType t : all_dtypes) m.rates.push_back({op, t, 1e-6, 1e9});
  return m;
}

}  // namespace tessera::test
