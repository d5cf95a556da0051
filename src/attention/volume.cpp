// SPDX-License-Identifier: Apache-2.0
#include "attention/volume.hpp"

#include <algorithm>
#include <functional>

namespace tessera::attention {

namespace {

/// Bytes of the things that travel, for one outer chunk and one rank's heads.
struct Sizes {
  std::int64_t queries, keys, out, dkeys;
};

Sizes sizes_of(const Problem& p, const Split& s, Pass pass) {
  const std::int64_t T = size_of(p.dtype), A = size_of(accumulate_type(p.dtype));
  const std::int64_t cq = p.batch * s.q_padded / s.r, ck = p.batch * s.k_padded / s.r;
  const std::int64_t hq = p.query_heads / s.u, hk = std::max<std::int64_t>(1, p.kv_heads / s.u);
  const std::int64_t d = p.head_dim, dv = p.value_dim;
  const bool forward = pass == Pass::forward;
  return {cq * hq * (forward ? d * T : (d + dv) * T + 2 * A), ck * hk * (d + dv) * T,
          cq * hq * (forward ? (dv + 1) * A : d * A), ck * hk * (d + dv) * A};
}

/// Whether chunk q has a visible pair with chunk k.
std::vector<char> visible_tiles(const Problem& p, const Split& s, bool dense) {
  std::vector<char> out(static_cast<std::size_t>(s.r) * s.r, 1);
  for (int i = 0; i < s.r && !dense; ++i)
    for (int j = 0; j < s.r; ++j)
      out[static_cast<std::size_t>(i) * s.r + j] =
          p.mask.area(query_chunk(p, s, i), key_chunk(p, s, j)) > 0;
  return out;
}

/// Hops that the members of one ring send for one chunk: needs[d] says whether the member at
/// distance d works with it. Inputs pass a member while anyone behind it still needs them; results
/// pass it once anyone up to it has added to them.
void ring_hops(const std::vector<char>& needs, std::int64_t input, std::int64_t result,
               const std::function<void(int, std::int64_t)>& charge) {
  const int size = static_cast<int>(needs.size());
  auto any = [&](int from, int to) {
    return std::any_of(needs.begin() + from, needs.begin() + to, [](char x) { return x != 0; });
  };
  for (int d = 0; d + 1 < size; ++d)
    if (any(d + 1, size)) charge(d, input);
  for (int d = 1; d < size; ++d)
    if (any(1, d + 1)) charge(d, result);
}

using Charge = std::vector<std::int64_t>;

void mesh_bytes(const Split& s, int a, int b, Pass pass, const Sizes& z,
                const std::vector<char>& seen, Charge& outer) {
  auto visible = [&](int q, int k) { return seen[static_cast<std::size_t>(q) * s.r + k] != 0; };
  for (int chunk = 0; chunk < s.r; ++chunk) {
    const int row = chunk / a, col = chunk % a;
    std::vector<char> q(a), k(b);
    for (int d = 0; d < a; ++d)
      for (int t = 0; t < b; ++t) q[d] |= visible(chunk, t * a + (col + d) % a);
    for (int d = 0; d < b; ++d)
      for (int t = 0; t < a; ++t) k[d] |= visible((row + d) % b * a + t, chunk);
    ring_hops(q, z.queries, z.out,
              [&](int d, std::int64_t n) { outer[row * a + (col + d) % a] += n; });
    ring_hops(k, z.keys, pass == Pass::backward ? z.dkeys : 0,
              [&](int d, std::int64_t n) { outer[(row + d) % b * a + col] += n; });
  }
}

void double_ring_bytes(int n, int w, Pass pass, const Sizes& z, const std::vector<char>& seen,
                       Charge& rank) {
  const int rings = n / w;
  const std::int64_t result = pass == Pass::backward ? z.dkeys : 0;
  for (int chunk = 0; chunk < n; ++chunk) {
    std::vector<char> outer(rings);
    for (int d = 0; d < rings; ++d) {
      const int ring = (chunk / w + d) % rings;
      std::vector<char> inner(w);
      for (int i = 0; i < w; ++i) {
        inner[i] = seen[static_cast<std::size_t>(ring * w + (chunk % w + i) % w) * n + chunk];
        outer[d] |= inner[i];
      }
      ring_hops(inner, z.keys, result,
                [&](int i, std::int64_t b) { rank[ring * w + (chunk % w + i) % w] += b; });
    }
    ring_hops(outer, z.keys, result,
              [&](int d, std::int64_t b) { rank[(chunk / w + d) % rings * w + chunk % w] += b; });
  }
}

/// For every key row: does any of the query rows see it? Row by row, by differences.
std::vector<char> seen_keys(const Mask& mask, const Rows& rows) {
  std::vector<std::int32_t> change(static_cast<std::size_t>(mask.cols()) + 1);
  for (const Segment& s : rows)
    for (const Band& b : mask.bands())
      for (std::int64_t i = 0; i < s.count && !s.padding(); ++i) {
        const std::int64_t q = s.start + i * s.stride;
        if (q >= b.q1) break;
        const Range k = b.keys_of(q);
        if (k.empty()) continue;
        ++change[static_cast<std::size_t>(k.begin)];
        --change[static_cast<std::size_t>(k.end)];
      }
  std::vector<char> seen(static_cast<std::size_t>(mask.cols()));
  std::int32_t open = 0;
  for (std::size_t k = 0; k < seen.size(); ++k) seen[k] = (open += change[k]) > 0;
  return seen;
}

void gather_bytes(const Problem& p, const Split& s, Pass pass, bool dense, Charge& rank) {
  const Sizes z = sizes_of(p, s, pass);
  const std::int64_t ck = p.batch * s.k_padded / s.r;
  const std::int64_t key = z.keys / ck, dkey = pass == Pass::backward ? z.dkeys / ck : 0;
  for (int q = 0; q < s.n; ++q) {
    const std::vector<char> seen =
        dense ? std::vector<char>() : seen_keys(p.mask, query_rows(p, s, q));
    for (int j = 0; j < s.n; ++j) {
      if (j == q) continue;
      std::int64_t rows = dense ? ck : 0;
      if (!dense)
        for (const Segment& seg : key_rows(p, s, j))
          for (std::int64_t i = 0; i < seg.count && !seg.padding(); ++i)
            rows += seen[static_cast<std::size_t>(seg.start + i * seg.stride)];
      rank[j] += rows * key;   // the owner sends keys,
      rank[q] += rows * dkey;  // the user sends their gradients back
    }
  }
}

std::int64_t exchange_bytes(const Problem& p, const Split& s, Pass pass) {
  const std::int64_t T = size_of(p.dtype), A = size_of(accumulate_type(p.dtype));
  const std::int64_t cq = p.batch * s.q_padded / s.n, ck = p.batch * s.k_padded / s.n;
  const std::int64_t hq = p.query_heads / s.u, hk = std::max<std::int64_t>(1, p.kv_heads / s.u);
  const std::int64_t d = p.head_dim, dv = p.value_dim;
  const std::int64_t kv =
      ck * hk * (d + dv) * (pass == Pass::backward && p.kv_heads % s.u != 0 ? A : T);
  return (s.u - 1) * (cq * hq * (d + dv) * T + kv);  // forward Q, K, V, O; backward dO, dQ, dK, dV
}

}  // namespace

std::vector<std::int64_t> formula_bytes(const Problem& p, const Scheme& scheme, int n, Pass pass,
                                        bool dense) {
  const Split s = make_split(p, scheme, n);
  Charge out(static_cast<std::size_t>(n));
  const Sizes z = sizes_of(p, s, pass);
  if (scheme.kind == SchemeKind::all_gather) {
    gather_bytes(p, s, pass, dense, out);
  } else if (scheme.kind == SchemeKind::double_ring) {
    double_ring_bytes(n, scheme.inner, pass, z, visible_tiles(p, s, dense), out);
  } else {
    const bool ring = scheme.kind == SchemeKind::ring || scheme.kind == SchemeKind::ulysses ||
                      (scheme.kind == SchemeKind::unified && scheme.outer == SchemeKind::ring);
    Charge outer(static_cast<std::size_t>(s.r));
    mesh_bytes(s, ring ? 1 : scheme.a, ring ? s.r : scheme.b, pass, z, visible_tiles(p, s, dense),
               outer);
    for (int r = 0; r < n; ++r) out[r] = outer[s.outer_of(r)] + exchange_bytes(p, s, pass);
  }
  if (p.sink && pass == Pass::backward && n > 1)
    for (auto& b : out) b += p.query_heads * size_of(accumulate_type(p.dtype));
  return out;
}

double unit_elements(const Problem& p, const Scheme& scheme, int n) {
  const Split s = make_split(p, scheme, n);
  return static_cast<double>(p.batch * s.q_padded / n * p.query_heads * p.head_dim);
}

}  // namespace tessera::attention
