// SPDX-License-Identifier: Apache-2.0
#include "attention/problem.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "attention/dispatch.hpp"
#include "base/error.hpp"

namespace tessera::attention {

namespace {
constexpr std::array<std::string_view, 6> scheme_names = {"ring",    "double_ring", "all_gather",
                                                          "ulysses", "mesh",        "unified"};

/// "1, 2, 4, 8": divisors of n, for messages.
std::string divisors(std::int64_t n) {
  std::string out;
  for (std::int64_t d = 1; d <= n; ++d)
    if (n % d == 0) out += (out.empty() ? "" : ", ") + std::to_string(d);
  return out;
}
}  // namespace

std::string_view name_of(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }
std::string_view name_of(SchemeKind kind) { return scheme_names[static_cast<std::size_t>(kind)]; }

SchemeKind scheme_of(const std::string& name) {
  for (std::size_t i = 0; i < scheme_names.size(); ++i)
    if (name == scheme_names[i]) return static_cast<SchemeKind>(i);
  throw Error(Exit::usage, fmt::format("no scheme is called '{}'", name),
              fmt::format("one of {}", fmt::join(scheme_names, ", ")));
}

double Problem::scale_factor() const {
  return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

double Problem::flops(Pass pass, std::int64_t area, std::int64_t heads) const {
  const double d = static_cast<double>(head_dim), dv = static_cast<double>(value_dim);
  const double gemms = pass == Pass::forward ? d + dv : 3 * d + 2 * dv;
  return 2.0 * static_cast<double>(area) * static_cast<double>(heads) * gemms;
}

SchemeKind body_of(const Scheme& s) {
  if (s.kind == SchemeKind::unified) return s.outer;
  return s.kind == SchemeKind::ulysses ? SchemeKind::ring : s.kind;
}

bool is_mesh(const Scheme& s) {
  return body_of(s) == SchemeKind::mesh || body_of(s) == SchemeKind::ring;
}

Scheme normal(Scheme s, int r) {
  if (body_of(s) == SchemeKind::ring) s.a = 1, s.b = r;
  return s;
}

std::string Scheme::text() const {
  std::string s(name_of(kind));
  const bool mesh_inside = kind == SchemeKind::unified && outer == SchemeKind::mesh;
  if (kind == SchemeKind::unified) s += fmt::format(" u{} {}", ulysses, name_of(outer));
  if (kind == SchemeKind::mesh || mesh_inside) s += fmt::format(" {}x{}", a, b);
  if (kind == SchemeKind::double_ring) s += fmt::format(" w{}", inner);
  if (slices > 1) s += fmt::format(" s{}", slices);
  return s;
}

namespace {

int ulysses_degree(const Scheme& s, int n) {
  return s.kind == SchemeKind::ulysses ? n : s.kind == SchemeKind::unified ? s.ulysses : 1;
}

void validate_heads(const Problem& p, const Scheme& s, int n) {
  if (p.query_heads % p.kv_heads != 0)
    throw Error(Exit::usage,
                fmt::format("attention.query_heads = {} is no multiple of attention.kv_heads = {}",
                            p.query_heads, p.kv_heads),
                fmt::format("kv_heads may be {}", divisors(p.query_heads)));
  const int u = ulysses_degree(s, n);
  const std::string key = s.kind == SchemeKind::unified ? "attention.unified.ulysses" : "ranks";
  if (u < 1 || n % u != 0)
    throw Error(Exit::usage, fmt::format("{} = {} does not divide {} ranks", key, u, n),
                fmt::format("one of {}", divisors(n)));
  if (p.query_heads % u != 0)
    throw Error(Exit::usage,
                fmt::format("scheme '{}': {} = {} does not divide attention.query_heads = {}",
                            name_of(s.kind), key, u, p.query_heads),
                fmt::format("use {} of {}, or scheme 'unified' with a smaller Ulysses degree", key,
                            divisors(p.query_heads)));
  if (p.kv_heads % u != 0 && u % p.kv_heads != 0)
    throw Error(
        Exit::usage,
        fmt::format("scheme '{}': {} = {} and attention.kv_heads = {}: neither divides the other",
                    name_of(s.kind), key, u, p.kv_heads),
        "KV heads are split over ranks or replicated whole; make one a multiple of the other");
  const std::int64_t own = p.kv_heads / u;  // 0: replicated, which cannot be sliced
  if (s.slices > 1 && (s.kind != SchemeKind::ulysses || own == 0 || own % s.slices != 0))
    throw Error(Exit::usage,
                fmt::format("attention.ulysses.slices = {} does not divide the {} KV heads of a "
                            "rank ({} of {} ranks)",
                            s.slices, std::max<std::int64_t>(own, 1), p.kv_heads, n),
                own > 1 ? fmt::format("one of {}, or 0 to have it chosen", divisors(own))
                        : "leave it at 0 or 1");
}

void validate_grid(const Scheme& s, int n) {
  const bool mesh =
      s.kind == SchemeKind::mesh || (s.kind == SchemeKind::unified && s.outer == SchemeKind::mesh);
  const int r = n / ulysses_degree(s, n);
  if (mesh && (s.a != 0 || s.b != 0) && s.a * s.b != r)
    throw Error(
        Exit::usage,
        fmt::format("attention.mesh.a = {} times attention.mesh.b = {} is not {}, the ranks of "
                    "the mesh",
                    s.a, s.b, r),
        fmt::format("a * b = {}, a one of {}; or leave both 0 to have them chosen", r,
                    divisors(r)));
  if (s.kind == SchemeKind::double_ring && (s.inner < 1 || n % s.inner != 0))
    throw Error(
        Exit::usage,
        fmt::format("attention.double_ring.inner = {} does not divide {} ranks", s.inner, n),
        fmt::format("one of {}", divisors(n)));
  if (s.kind == SchemeKind::unified && s.outer != SchemeKind::mesh && s.outer != SchemeKind::ring)
    throw Error(Exit::usage, fmt::format("attention.unified.outer = \"{}\"", name_of(s.outer)),
                "\"ring\" or \"mesh\"");
}

}  // namespace

void validate(const Problem& p, const Scheme& s, int n) {
  if (p.layout == Layout::balanced && p.key_sequence != p.sequence)
    throw Error(
        Exit::usage,
        fmt::format("attention.layout = \"balanced\" deals queries and keys alike, there are "
                    "{} queries and {} keys",
                    p.sequence, p.key_sequence),
        "use layout \"zigzag\", \"contiguous\" or \"striped\" for unlike lengths");
  validate_heads(p, s, n);
  validate_grid(s, n);
  for (auto [key, value] : {std::pair{"attention.sequence", p.sequence},
                            std::pair{"attention.key_sequence", p.key_sequence}})
    if (value < n)
      throw Error(Exit::usage, fmt::format("{} = {} is less than {} ranks", key, value, n),
                  fmt::format("start {} ranks or fewer, or give a longer sequence", value));
}

Split make_split(const Problem& p, const Scheme& s, int n) {
  Split out;
  out.n = n;
  out.u = ulysses_degree(s, n);
  out.r = n / out.u;
  out.slices = out.u > 1 ? std::max(1, s.slices) : 1;
  // A multiple for n ranks also cuts r chunks, each into u shards of equal length.
  const std::int64_t multiple = padding_multiple(p.layout, n);
  out.q_padded = padded(p.sequence, multiple);
  out.k_padded = padded(p.key_sequence, multiple);
  if (p.layout == Layout::balanced) {
    const std::int64_t per_item = pieces_per_chunk * out.r;
    out.owner = dispatch(piece_work(p.mask, p.batch, p.sequence, out.q_padded, per_item), out.r);
  }
  return out;
}

Rows query_chunk(const Problem& p, const Split& s, int outer) {
  if (!s.owner.empty()) return piece_rows(s.owner, outer, p.batch, p.sequence, s.q_padded);
  return chunk_rows(p.layout, s.r, outer, p.batch, p.sequence, s.q_padded);
}

Rows key_chunk(const Problem& p, const Split& s, int outer) {
  if (!s.owner.empty()) return piece_rows(s.owner, outer, p.batch, p.key_sequence, s.k_padded);
  return chunk_rows(p.layout, s.r, outer, p.batch, p.key_sequence, s.k_padded);
}

namespace {
Rows shard(const Rows& chunk, const Split& s, int inner) {
  const std::int64_t c = count(chunk) / s.u;
  return slice(chunk, Range{inner * c, (inner + 1) * c});
}
}  // namespace

Rows query_rows(const Problem& p, const Split& s, int rank) {
  return shard(query_chunk(p, s, s.outer_of(rank)), s, s.inner_of(rank));
}

Rows key_rows(const Problem& p, const Split& s, int rank) {
  return shard(key_chunk(p, s, s.outer_of(rank)), s, s.inner_of(rank));
}

Heads heads_of(const Problem& p, const Split& s, int inner) {
  const std::int64_t hq = p.query_heads / s.u;
  if (p.kv_heads % s.u == 0) {
    const std::int64_t hk = p.kv_heads / s.u;
    return {{inner * hq, (inner + 1) * hq}, {inner * hk, (inner + 1) * hk}};
  }
  const std::int64_t head = inner * p.kv_heads / s.u;  // u / kv_heads ranks share one KV head
  return {{inner * hq, (inner + 1) * hq}, {head, head + 1}};
}

Heads slice_of(const Heads& heads, const Split& s, int slice) {
  const auto part = [&](Range r) {
    const std::int64_t each = r.size() / s.slices;
    return Range{r.begin + slice * each, r.begin + (slice + 1) * each};
  };
  return s.slices == 1 ? heads : Heads{part(heads.query), part(heads.kv)};
}

}  // namespace tessera::attention
