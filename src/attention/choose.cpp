// SPDX-License-Identifier: Apache-2.0
// What a scheme leaves open, chosen by the machine model: the tile of a mesh, the slices of
// Ulysses.
#include <algorithm>

#include "attention/scheme.hpp"

namespace tessera::attention {

namespace {

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

/// A message of every rank to the one `distance` further on, the slowest.
double message_time(const plan::Machine& m, int n, int distance, double bytes) {
  double worst = 0;
  for (int r = 0; r < n; ++r) {
    const plan::Tier& t = tier_of(m, r, (r + distance) % n);
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

namespace {

/// Time of Ulysses in slices: the exchange of the next slice goes before that back of this one.
/// What runs beside a transfer is slowed down as the machine says (Machine::overlap).
double sliced_time(double in, double tile, double out, int slices, double overlap) {
  double comm = in, compute = 0, arrived = in;
  for (int g = 0; g < slices; ++g) {
    const double here = arrived;
    if (g + 1 < slices) comm += in, arrived = comm;
    compute = std::max(compute, here) + tile;
    comm = std::max(comm, compute) + out;
  }
  const double hidden = slices * (in + tile + out) - comm;
  return comm + (1 - overlap) * hidden;
}

/// The same for both passes, since forward leaves its slices for backward: that of forward.
int choose_slices(const Problem& p, const Split& s, const plan::Machine& m) {
  constexpr int most = 4;  // smaller tiles run at lower rates than the model has
  const std::int64_t own = p.kv_heads / s.u;
  if (s.u == 1 || own == 0) return 1;
  const double w = static_cast<double>(size_of(p.dtype)), rows = static_cast<double>(s.q_padded);
  const double keys = static_cast<double>(s.k_padded), dims = static_cast<double>(p.head_dim),
               values = static_cast<double>(p.value_dim);
  double overhead = 0;
  const double rate = rate_of(m, "attention.forward", p.dtype, overhead);
  int best = 1;
  double least = 0;
  for (int g = 1; g <= most; ++g) {
    if (own % g != 0) continue;
    const double hk = static_cast<double>(own) / g,
                 hq = static_cast<double>(p.query_heads) / (s.u * g);
    // A message to each of the others, of the rows that the two share.
    const auto exchange = [&](double elements) {
      const double bytes = static_cast<double>(p.batch) * elements * w / s.u;
      double time = 0;
      for (int d = 1; d < s.u; ++d) time += message_time(m, s.n, d, bytes);
      return time;
    };
    const double area = static_cast<double>(p.mask.area());
    // Every slice packs in one step and unpacks in one for each peer.
    const double tile = overhead + s.u * m.step_overhead_s +
                        (rate > 0 ? p.flops(Pass::forward, 1, 1) * area * hq / rate : 0);
    const double time = sliced_time(exchange(rows * hq * dims + keys * hk * (dims + values)), tile,
                                    exchange(rows * hq * values), g, m.overlap);
    if (least == 0 || time < least * (1 - 1e-3)) best = g, least = time;
  }
  return best;
}

}  // namespace

Scheme choose(const Problem& p, Scheme scheme, int n, Pass pass, const plan::Machine& machine) {
  const Split s = make_split(p, scheme, n);
  scheme = normal(scheme, s.r);
  if (scheme.slices == 0)
    scheme.slices = scheme.kind == SchemeKind::ulysses ? choose_slices(p, s, machine) : 1;
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

}  // namespace tessera::attention
