// SPDX-License-Identifier: Apache-2.0
// Interval arithmetic on bands; all offsets are 64 bit (field report OB-027).
#include "kernels/kokkos/mask.hpp"

#include <algorithm>

namespace tessera::kernels::portable {
namespace {

bool before(const Range& a, const Range& b) { return a.begin < b.begin; }

/// Sorts and joins ranges that touch or overlap.
std::vector<Range> joined(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), before);
  std::vector<Range> out;
  for (const Range& r : ranges) {
    if (!out.empty() && r.begin <= out.back().end) {
      out.back().end = std::max(out.back().end, r.end);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

/// The bands that have visible cells in the rectangle, cut to it.
std::vector<ops::Band> cut_to(std::span<const ops::Band> mask, Range q, Range k) {
  std::vector<ops::Band> out;
  for (const ops::Band& band : mask) {
    const Rect r = visible_part(band, q, k);
    if (!r.empty()) out.push_back({r.q.begin, r.q.end, r.k.begin, r.k.end, band.lo, band.hi});
  }
  return out;
}

bool covers(const ops::Band& b, Range q, Range k) {
  return Range{b.q0, b.q1}.covers(q) && b.keys_of(q.begin).end >= k.end &&
         b.keys_of(q.end - 1).begin <= k.begin && b.keys_of(q.begin).begin <= k.begin &&
         b.keys_of(q.end - 1).end >= k.end;
}

void add_piece(std::span<const ops::Band> mask, Range q, Range k, Cut cut,
               std::vector<Piece>& out) {
  std::vector<ops::Band> bands = cut_to(mask, q, k);
  if (bands.empty()) return;
  Range rows{q.end, q.begin}, keys{k.end, k.begin};  // the hull of what is visible
  for (const ops::Band& b : bands) {
    rows = {std::min(rows.begin, b.q0), std::max(rows.end, b.q1)};
    keys = {std::min(keys.begin, b.k0), std::max(keys.end, b.k1)};
  }
  if (bands.size() == 1 && covers(bands[0], rows, keys)) {
    out.push_back({rows, keys, true, {}});
  } else if (rows.size() <= cut.partial_rows) {
    out.push_back({rows, keys, false, std::move(bands)});
  } else {
    for (std::int64_t r = rows.begin; r < rows.end; r += cut.partial_rows) {
      add_piece(bands, {r, std::min(r + cut.partial_rows, rows.end)}, keys, cut, out);
    }
  }
}

}  // namespace

Rect visible_part(const ops::Band& band, Range q, Range k) {
  const Range keys{std::max(band.k0, k.begin), std::min(band.k1, k.end)};
  // Row q has keys iff q + lo < keys.end and q + hi >= keys.begin.
  const Range rows{std::max({band.q0, q.begin, keys.begin - band.hi}),
                   std::min({band.q1, q.end, keys.end - band.lo})};
  if (keys.empty() || rows.empty() || band.lo > band.hi) return {};
  return {rows,
          {std::max(keys.begin, rows.begin + band.lo), std::min(keys.end, rows.end + band.hi)}};
}

std::vector<Range> visible_queries(std::span<const ops::Band> mask, Range q, Range k) {
  std::vector<Range> out;
  for (const ops::Band& b : cut_to(mask, q, k)) out.push_back({b.q0, b.q1});
  return joined(std::move(out));
}

std::vector<Range> visible_keys(std::span<const ops::Band> mask, Range q, Range k) {
  std::vector<Range> out;
  for (const ops::Band& b : cut_to(mask, q, k)) out.push_back({b.k0, b.k1});
  return joined(std::move(out));
}

std::vector<Piece> pieces(std::span<const ops::Band> mask, Range q, Range k, Cut cut) {
  const std::vector<ops::Band> bands = cut_to(mask, q, k);
  std::vector<Piece> out;
  for (const Range& r : visible_keys(bands, q, k)) {
    // Equal parts, in multiples of 16 keys, so that no thin rest is left for the matrix product.
    const std::int64_t parts = (r.size() + cut.keys - 1) / cut.keys;
    const std::int64_t width = ((r.size() + parts - 1) / parts + 15) / 16 * 16;
    for (std::int64_t b = r.begin; b < r.end; b += width) {
      add_piece(bands, q, {b, std::min(b + width, r.end)}, cut, out);
    }
  }
  return out;
}

void keys_of_row(const Piece& piece, std::int64_t q, std::vector<Range>& out) {
  out.clear();
  if (piece.full) {
    out.push_back(piece.k);
    return;
  }
  for (const ops::Band& b : piece.bands) {
    const Range r = b.keys_of(q);
    if (!r.empty()) out.push_back(r);
  }
  std::sort(out.begin(), out.end(), before);
}

}  // namespace tessera::kernels::portable
