// SPDX-License-Identifier: Apache-2.0
#include "attention/mask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.hpp"

namespace tessera::attention {

namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - ((a % b) < 0 ? 1 : 0); }
std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

/// Cells of rows [q0, q1) and columns [k0, k1) with k - q <= h.
std::int64_t cells_below(const Band& r, std::int64_t h) {
  // Row q has clamp(q + h - k0 + 1, 0, C) of them.
  const std::int64_t C = r.k1 - r.k0;
  const std::int64_t first = r.k0 - h;         // first row with one cell
  const std::int64_t full = r.k0 - h + C - 1;  // first row with all C
  const std::int64_t a = std::clamp(first, r.q0, r.q1), b = std::clamp(full, r.q0, r.q1);
  const std::int64_t ramp = b - a;  // rows a .. b-1 have x, x+1, ...
  const std::int64_t x = a + h - r.k0 + 1;
  return ramp * x + ramp * (ramp - 1) / 2 + (r.q1 - b) * C;
}

std::string text(const Band& b) {
  auto bound = [](std::int64_t v) {
    return v <= -Band::unbounded  ? std::string("-inf")
           : v >= Band::unbounded ? "inf"
                                  : fmt::format("{}", v);
  };
  return fmt::format("q [{}, {}) k [{}, {}) diagonals {}..{}", b.q0, b.q1, b.k0, b.k1, bound(b.lo),
                     bound(b.hi));
}

/// Cells that both bands hold.
Band common(const Band& a, const Band& b) {
  return tight({std::max(a.q0, b.q0), std::min(a.q1, b.q1), std::max(a.k0, b.k0),
                std::min(a.k1, b.k1), std::max(a.lo, b.lo), std::min(a.hi, b.hi)});
}

/// The one band whose cells are those of the disjoint, tight `bands`, if there is one. The smallest
/// band around them holds them all; it holds nothing else when its area is the sum of theirs.
std::optional<Band> as_one(std::span<const Band> bands) {
  Band around = bands.front();
  around.lo = Band::unbounded, around.hi = -Band::unbounded;
  std::int64_t sum = 0;
  for (const Band& b : bands) {
    around.q0 = std::min(around.q0, b.q0), around.q1 = std::max(around.q1, b.q1);
    around.k0 = std::min(around.k0, b.k0), around.k1 = std::max(around.k1, b.k1);
    around.lo = std::min(around.lo, std::max(b.lo, b.k0 - (b.q1 - 1)));
    around.hi = std::max(around.hi, std::min(b.hi, b.k1 - 1 - b.q0));
    sum += area(b);
  }
  if (area(around) != sum) return std::nullopt;
  return tight(around);
}

std::vector<Range> unite(std::vector<Range> r) {
  std::sort(r.begin(), r.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::vector<Range> out;
  for (const Range& x : r) {
    if (!out.empty() && x.begin <= out.back().end)
      out.back().end = std::max(out.back().end, x.end);
    else
      out.push_back(x);
  }
  return out;
}

}  // namespace

Band tight(Band b) {
  if (b.hi < Band::unbounded) b.q0 = std::max(b.q0, b.k0 - b.hi);
  if (b.lo > -Band::unbounded) b.q1 = std::min(b.q1, b.k1 - b.lo);
  if (b.q0 >= b.q1 || b.k0 >= b.k1 || b.lo > b.hi) return {b.q0, b.q0, b.k0, b.k0, 0, 0};
  if (b.lo > -Band::unbounded) b.k0 = std::max(b.k0, b.q0 + b.lo);
  if (b.hi < Band::unbounded) b.k1 = std::min(b.k1, b.q1 + b.hi);
  if (b.k0 >= b.k1) return {b.q0, b.q0, b.k0, b.k0, 0, 0};
  if (b.lo <= b.k0 - (b.q1 - 1)) b.lo = -Band::unbounded;
  if (b.hi >= b.k1 - 1 - b.q0) b.hi = Band::unbounded;
  return b;
}

std::int64_t area(const Band& band) {
  const Band b = tight(band);
  const std::int64_t all = (b.q1 - b.q0) * (b.k1 - b.k0);
  if (all == 0) return 0;
  const std::int64_t upper = b.hi >= Band::unbounded ? all : cells_below(b, b.hi);
  return upper - (b.lo <= -Band::unbounded ? 0 : cells_below(b, b.lo - 1));
}

std::vector<Range> columns(std::span<const Band> bands) {
  std::vector<Range> r;
  for (const Band& b : bands)
    if (const Band t = tight(b); t.q0 < t.q1) r.push_back({t.k0, t.k1});
  return unite(std::move(r));
}

std::vector<Range> rows_of(std::span<const Band> bands) {
  std::vector<Range> r;
  for (const Band& b : bands)
    if (const Band t = tight(b); t.q0 < t.q1) r.push_back({t.q0, t.q1});
  return unite(std::move(r));
}

Mask::Mask(std::string kind, MaskShape shape, std::vector<Band> bands)
    : kind_(std::move(kind)), shape_(shape) {
  for (const Band& b : bands) {
    if (b.q0 < 0 || b.k0 < 0 || b.q1 > rows() || b.k1 > cols())
      throw Error(Exit::usage,
                  fmt::format("mask '{}': slice {} leaves the {} x {} matrix", kind_, text(b),
                              rows(), cols()),
                  "slices count rows over the whole batch: row = batch item * sequence + position");
    if (const Band t = tight(b); t.q0 < t.q1) bands_.push_back(t);
  }
  std::sort(bands_.begin(), bands_.end(),
            [](const Band& a, const Band& b) { return a.q0 != b.q0 ? a.q0 < b.q0 : a.k0 < b.k0; });
  for (std::size_t i = 0; i < bands_.size(); ++i) {
    reach_.push_back(std::max(i ? reach_.back() : 0, bands_[i].q1));
    for (std::size_t j = i + 1; j < bands_.size() && bands_[j].q0 < bands_[i].q1; ++j) {
      const Band both = common(bands_[i], bands_[j]);
      if (both.q0 < both.q1)
        throw Error(
            Exit::usage,
            fmt::format("mask '{}': slices overlap, the pair (query {}, key {}) is in {} and in {}",
                        kind_, both.q0, both.keys_of(both.q0).begin, text(bands_[i]),
                        text(bands_[j])),
            "cut the slices so that each (query, key) pair is in one of them only");
    }
  }
}

std::int64_t Mask::area() const {
  std::int64_t n = 0;
  for (const Band& b : bands_) n += attention::area(b);
  return n;
}

std::uint64_t Mask::hash() const {
  std::uint64_t h = 1469598103934665603ull;
  auto mix = [&](std::int64_t v) {
    for (int i = 0; i < 8; ++i)
      h = (h ^ ((static_cast<std::uint64_t>(v) >> (8 * i)) & 0xff)) * 1099511628211ull;
  };
  for (std::int64_t v : {shape_.batch, shape_.queries, shape_.keys}) mix(v);
  for (const Band& b : bands_)
    for (std::int64_t v : {b.q0, b.q1, b.k0, b.k1, b.lo, b.hi}) mix(v);
  return h;
}

template <class Take>
void Mask::visit(const Rows& q, const Rows& k, Take take) const {
  std::int64_t q_at = 0;
  for (const Segment& qs : q) {
    const std::int64_t q_base = q_at;
    q_at += qs.count;
    if (qs.padding()) continue;
    const std::int64_t q_end = qs.start + (qs.count - 1) * qs.stride + 1;
    // First band that may reach row qs.start: reach_ is non-decreasing.
    auto it = std::upper_bound(reach_.begin(), reach_.end(), qs.start) - reach_.begin();
    for (auto i = static_cast<std::size_t>(it); i < bands_.size() && bands_[i].q0 < q_end; ++i) {
      const Band& b = bands_[i];
      if (b.q1 <= qs.start) continue;
      std::int64_t k_at = 0;
      for (const Segment& ks : k) {
        const std::int64_t k_base = k_at;
        k_at += ks.count;
        if (ks.padding() || ks.start >= b.k1) continue;
        const std::int64_t s = ks.count == 1 ? qs.stride : ks.stride;
        if (s != qs.stride && qs.count != 1)
          throw std::logic_error("mask cut: query and key segments of different stride");
        // Local i <-> qs.start + s i, local j <-> ks.start + s j.
        Band c;
        c.q0 = std::max<std::int64_t>(0, ceil_div(b.q0 - qs.start, s));
        c.q1 = std::min(qs.count, ceil_div(b.q1 - qs.start, s));
        c.k0 = std::max<std::int64_t>(0, ceil_div(b.k0 - ks.start, s));
        c.k1 = std::min(ks.count, ceil_div(b.k1 - ks.start, s));
        const std::int64_t shift = qs.start - ks.start;
        if (b.lo > -Band::unbounded) c.lo = ceil_div(b.lo + shift, s);
        if (b.hi < Band::unbounded) c.hi = floor_div(b.hi + shift, s);
        c = tight(c);
        if (c.q0 >= c.q1) continue;
        const std::int64_t diagonal = k_base - q_base;
        c.q0 += q_base, c.q1 += q_base, c.k0 += k_base, c.k1 += k_base;
        if (c.lo > -Band::unbounded) c.lo += diagonal;
        if (c.hi < Band::unbounded) c.hi += diagonal;
        take(c);
      }
    }
  }
}

std::vector<Band> Mask::cut(const Rows& q, const Rows& k) const {
  // Bands come by rows and then columns, so parts of one band are mostly neighbours in the list.
  std::vector<Band> out;
  visit(q, k, [&](Band b) {
    while (!out.empty()) {
      const auto joined = as_one(std::array{out.back(), b});
      if (!joined) break;
      b = *joined;
      out.pop_back();
    }
    out.push_back(b);
  });
  if (out.size() < 2) return out;
  const auto joined = as_one(out);
  return joined ? std::vector{*joined} : out;
}

Extent Mask::extent(const Rows& q, const Rows& k) const {
  Extent out;
  visit(q, k, [&](const Band& b) {
    out.area += attention::area(b);
    out.queries = hull(out.queries, {b.q0, b.q1});
    out.keys = hull(out.keys, {b.k0, b.k1});
  });
  return out;
}

namespace {

/// Adds one band per batch item; `band` is in positions of the item.
void per_item(std::vector<Band>& out, const MaskShape& s, Band band) {
  for (std::int64_t i = 0; i < s.batch; ++i) {
    Band b = band;
    const std::int64_t dq = i * s.queries, dk = i * s.keys;
    b.q0 += dq, b.q1 += dq, b.k0 += dk, b.k1 += dk;
    if (b.lo > -Band::unbounded) b.lo += dk - dq;
    if (b.hi < Band::unbounded) b.hi += dk - dq;
    out.push_back(b);
  }
}

void need_square(const MaskShape& s, const char* kind) {
  if (s.queries != s.keys)
    throw Error(
        Exit::usage,
        fmt::format(
            "mask '{}' needs attention.key_sequence = attention.sequence, they are {} and {}", kind,
            s.keys, s.queries),
        "use mask = \"full\", \"causal\", \"causal_bottom_right\" or \"slices\" for unlike "
        "lengths");
}

}  // namespace

Mask full_mask(MaskShape s) {
  std::vector<Band> b;
  per_item(b, s, {0, s.queries, 0, s.keys});
  return {"full", s, std::move(b)};
}

Mask causal_mask(MaskShape s, bool bottom_right) {
  std::vector<Band> b;
  per_item(b, s,
           {0, s.queries, 0, s.keys, -Band::unbounded, bottom_right ? s.keys - s.queries : 0});
  return {bottom_right ? "causal_bottom_right" : "causal", s, std::move(b)};
}

Mask window_mask(MaskShape s, std::int64_t window) {
  if (window < 1)
    throw Error(Exit::usage, fmt::format("attention.window = {} shows no key", window),
                "the window counts the token itself: give 1 or more");
  std::vector<Band> b;
  per_item(b, s, {0, s.queries, 0, s.keys, -(window - 1), 0});
  return {"window", s, std::move(b)};
}

Mask document_mask(MaskShape s, std::span<const std::int64_t> lengths, bool causal) {
  need_square(s, "documents");
  std::vector<Band> b;
  std::int64_t at = 0;
  for (std::int64_t n : lengths) {
    if (n <= 0)
      throw Error(Exit::usage,
                  fmt::format("mask 'documents': length {} of document {}", n, b.size()),
                  "every document has one token or more");
    b.push_back({at, at + n, at, at + n, -Band::unbounded, causal ? 0 : Band::unbounded});
    at += n;
  }
  if (at > s.batch * s.queries)
    throw Error(Exit::usage,
                fmt::format("mask 'documents': the lengths add up to {}, there are {} tokens", at,
                            s.batch * s.queries),
                "shorten the last document; tokens after the last one are fully masked");
  return {causal ? "documents" : "documents_full", s, std::move(b)};
}

Mask block_causal_mask(MaskShape s, std::int64_t block) {
  need_square(s, "block_causal");
  if (block < 1)
    throw Error(Exit::usage, fmt::format("attention.block = {}", block), "give 1 or more");
  std::vector<Band> b;
  for (std::int64_t at = 0; at < s.queries; at += block) {
    const std::int64_t end = std::min(at + block, s.queries);
    per_item(b, s, {at, end, 0, end});
  }
  return {"block_causal", s, std::move(b)};
}

Mask prefix_mask(MaskShape s, std::int64_t prefix) {
  need_square(s, "prefix");
  if (prefix < 0 || prefix > s.keys)
    throw Error(Exit::usage, fmt::format("attention.prefix = {} of {} keys", prefix, s.keys),
                "give 0 to the number of keys");
  std::vector<Band> b;
  per_item(b, s, {0, prefix, 0, prefix});
  per_item(b, s, {prefix, s.queries, 0, s.keys, -Band::unbounded, 0});
  return {"prefix", s, std::move(b)};
}

Mask region_mask(MaskShape s, std::span<const Range> regions) {
  need_square(s, "regions");
  std::vector<Band> b;
  std::vector<Range> sorted(regions.begin(), regions.end());
  std::sort(sorted.begin(), sorted.end(), [](Range x, Range y) { return x.begin < y.begin; });
  for (std::int64_t item = 0, r = 0; item < s.batch; ++item) {
    const std::int64_t begin = item * s.queries, end = begin + s.queries;
    std::int64_t at = begin;
    for (; r < std::ssize(sorted) && sorted[r].begin < end; ++r) {
      const Range g = sorted[r];
      if (g.begin < at || g.end > end || g.empty())
        throw Error(
            Exit::usage,
            fmt::format("mask 'regions': region [{}, {}) is empty, overlaps another or crosses "
                        "a batch item",
                        g.begin, g.end),
            "regions are disjoint ranges of packed rows inside one batch item");
      b.push_back({at, g.begin, begin, end, -Band::unbounded, 0});
      b.push_back({g.begin, g.end, begin, g.end});
      at = g.end;
    }
    b.push_back({at, end, begin, end, -Band::unbounded, 0});
  }
  return {"regions", s, std::move(b)};
}

Mask slice_mask(MaskShape s, std::span<const AttnSlice> slices) {
  std::vector<Band> b;
  for (const AttnSlice& x : slices) {
    if (x.type < 0 || x.type > 3)
      throw Error(Exit::usage, fmt::format("mask 'slices': type {} of slice {}", x.type, b.size()),
                  "0 full, 1 causal (bottom-right), 2 inverse causal (top-left), 3 both");
    b.push_back({x.q0, x.q1, x.k0, x.k1, (x.type & 2) ? x.k0 - x.q0 : -Band::unbounded,
                 (x.type & 1) ? x.k1 - x.q1 : Band::unbounded});
  }
  return {"slices", s, std::move(b)};
}

}  // namespace tessera::attention
