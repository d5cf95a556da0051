// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mask_index.hpp"

#include <algorithm>
#include <limits>

namespace tessera::kernels::cuda {
namespace {

/// Half-open rectangle; the smallest one around the visible cells of a band, which has no empty row
/// or column inside, so both sides are exact.
struct Rect {
  int row0, row1, col0, col1;
  bool empty() const { return row0 >= row1 || col0 >= col1; }
};

Rect visible_part(const TileBand& b, const Rect& in) {
  Rect r{std::max(b.row0, in.row0), std::min(b.row1, in.row1), std::max(b.col0, in.col0),
         std::min(b.col1, in.col1)};
  if (r.empty() || b.lo > b.hi) return {0, 0, 0, 0};
  // Row i has columns iff i + lo < col1 and i + hi >= col0.
  r.row0 = std::max(r.row0, r.col0 - b.hi);
  r.row1 = std::min(r.row1, r.col1 - b.lo);
  if (r.empty()) return {0, 0, 0, 0};
  r.col0 = std::max(r.col0, r.row0 + b.lo);
  r.col1 = std::min(r.col1, r.row1 + b.hi);
  return r;
}

/// Visible cells of a band in `r`, its visible part of some rectangle: the cells of `r` without the
/// two triangles that the bounds cut off.
std::int64_t visible_cells(const TileBand& b, const Rect& r) {
  const std::int64_t rows = r.row1 - r.row0, cols = r.col1 - r.col0;
  const auto triangle = [&](std::int64_t side) {
    const std::int64_t lines = std::clamp<std::int64_t>(side, 0, rows);
    return lines * side - lines * (lines - 1) / 2;
  };
  return rows * cols - triangle(r.col1 - 1 - b.hi - r.row0) - triangle(r.row1 - 1 + b.lo - r.col0);
}

/// Do the bands, which are disjoint, cover the whole block together?
bool cover(const std::vector<TileBand>& bands, const Rect& block) {
  std::int64_t cells = 0;
  for (const TileBand& b : bands) {
    const Rect r = visible_part(b, block);
    if (!r.empty()) cells += visible_cells(b, r);
  }
  return cells == std::int64_t{block.row1 - block.row0} * (block.col1 - block.col0);
}

/// Is there a column of the block that no row of it sees?
bool has_holes(const std::vector<TileBand>& bands, const Rect& block) {
  std::vector<Range> seen;
  for (const TileBand& b : bands) {
    const Rect r = visible_part(b, block);
    seen.push_back({r.col0, r.col1});
  }
  return !leave_no_gap(std::move(seen), {block.col0, block.col1});
}

/// A band and its visible part of a block of rows.
struct Meeting {
  TileBand band;
  Rect part;
};

std::vector<Meeting> meetings(std::span<const TileBand> mask, const Rect& strip) {
  std::vector<Meeting> found;
  for (const TileBand& b : mask) {
    const Rect r = visible_part(b, strip);
    if (!r.empty()) found.push_back({b, r});
  }
  return found;
}

/// The first column from `col` on that some row of the strip sees; INT_MAX if there is none.
int next_seen(const std::vector<Meeting>& found, int col) {
  int next = std::numeric_limits<int>::max();
  for (const Meeting& m : found) {
    if (m.part.col1 > col) next = std::min(next, std::max(col, m.part.col0));
  }
  return next;
}

void add_strip(std::span<const TileBand> mask, const Rect& strip, int col_block, bool all_rows,
               TileIndex& out) {
  const auto found = meetings(mask, strip);
  for (int c = next_seen(found, 0); c < strip.col1; c = next_seen(found, c + col_block)) {
    const Rect block{strip.row0, strip.row1, c, std::min(c + col_block, strip.col1)};
    std::vector<TileBand> bands;
    for (const Meeting& m : found) {
      if (visible_part(m.band, block).empty()) continue;
      bands.push_back(m.band);
      // A diagonal may run on behind a block that was cut short, where its rows are another
      // block's.
      bands.back().row1 = std::min(bands.back().row1, strip.row1);
    }
    const bool whole = all_rows && block.col1 - block.col0 == col_block;
    if (whole && cover(bands, block)) {
      out.entries.push_back({c, 0, 0, 0});
      continue;
    }
    const int flags = tile_partial | (has_holes(bands, block) ? tile_holes : 0);
    out.entries.push_back(
        {c, flags, static_cast<int>(out.bands.size()), static_cast<int>(bands.size())});
    out.bands.insert(out.bands.end(), bands.begin(), bands.end());
  }
}

/// The smallest range of columns that holds what rows [row0, row1) see.
Range columns_of(std::span<const TileBand> mask, int row0, int row1, int cols) {
  Range seen;
  for (const TileBand& b : mask) {
    const Rect r = visible_part(b, {row0, row1, 0, cols});
    seen = hull(seen, {r.col0, r.col1});
  }
  return seen;
}

/// End of the block of rows that begins at `row`; edges: rows where bands begin and end, ascending.
int block_end(std::span<const TileBand> mask, const std::vector<int>& edges, int row, int row_block,
              int rows, int cols) {
  const int end = std::min(row + row_block, rows);
  for (auto e = std::ranges::upper_bound(edges, row); e != edges.end() && *e < end; ++e) {
    // Short runs of rows are better off together: each block has its price.
    if (e + 1 == edges.end() || e[1] - e[0] < row_block) continue;
    if (!columns_of(mask, row, *e, cols).overlaps(columns_of(mask, *e, end, cols))) return *e;
  }
  return end;
}

}  // namespace

bool leave_no_gap(std::vector<Range> parts, Range whole) {
  std::erase_if(parts, [](const Range& r) { return r.empty(); });
  std::ranges::sort(parts, {}, &Range::begin);
  std::int64_t end = whole.begin;
  for (const Range& r : parts) {
    if (r.begin > end) break;
    end = std::max(end, r.end);
  }
  return !whole.empty() && end >= whole.end;
}

std::vector<TileBand> narrow(std::span<const ops::Band> mask, std::int64_t rows,
                             std::int64_t cols) {
  const auto cut = [](std::int64_t x, std::int64_t low, std::int64_t high) {
    return static_cast<int>(std::clamp(x, low, high));
  };
  std::vector<TileBand> out;
  for (const ops::Band& b : mask) {
    const TileBand t{cut(b.q0, 0, rows), cut(b.q1, 0, rows),     cut(b.k0, 0, cols),
                     cut(b.k1, 0, cols), cut(b.lo, -rows, cols), cut(b.hi, -rows, cols)};
    if (!visible_part(t, {t.row0, t.row1, t.col0, t.col1}).empty()) out.push_back(t);
  }
  return out;
}

std::vector<TileBand> transposed(std::vector<TileBand> bands) {
  for (TileBand& b : bands) b = {b.col0, b.col1, b.row0, b.row1, -b.hi, -b.lo};
  return bands;
}

TileIndex index_tiles(std::span<const TileBand> mask, int rows, int cols, int row_block,
                      int col_block, bool cut_rows_are_masked) {
  std::vector<int> edges;
  for (const TileBand& b : mask) edges.insert(edges.end(), {b.row0, b.row1});
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  TileIndex found, out;
  std::vector<std::size_t> blocks;
  found.begin.push_back(0);
  for (int r = 0; r < rows; r = found.rows.back().end) {
    const int end = block_end(mask, edges, r, row_block, rows, cols);
    found.rows.push_back({r, end});
    add_strip(mask, {r, end, 0, cols}, col_block, !cut_rows_are_masked || end - r == row_block,
              found);
    found.begin.push_back(static_cast<int>(found.entries.size()));
    if (found.begin.back() > *(found.begin.end() - 2)) blocks.push_back(found.rows.size() - 1);
  }
  const auto work = [&](std::size_t b) { return found.begin[b + 1] - found.begin[b]; };
  std::ranges::stable_sort(blocks, std::ranges::greater{}, work);
  out.begin.push_back(0);
  for (const std::size_t b : blocks) {
    out.rows.push_back(found.rows[b]);
    out.entries.insert(out.entries.end(), found.entries.begin() + found.begin[b],
                       found.entries.begin() + found.begin[b + 1]);
    out.begin.push_back(static_cast<int>(out.entries.size()));
  }
  out.bands = std::move(found.bands);
  return out;
}

}  // namespace tessera::kernels::cuda
