// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mask_index.hpp"

#include <algorithm>
#include <numeric>

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
  std::vector<std::pair<int, int>> seen;
  for (const TileBand& b : bands) {
    const Rect r = visible_part(b, block);
    seen.emplace_back(r.col0, r.col1);
  }
  std::sort(seen.begin(), seen.end());
  int done = block.col0;
  for (const auto& [begin, end] : seen) {
    if (begin > done) return true;
    done = std::max(done, end);
  }
  return done < block.col1;
}

/// (block of columns, band) pairs of one block of rows, by block.
std::vector<std::pair<int, int>> meetings(std::span<const TileBand> mask, const Rect& strip,
                                          int col_block) {
  std::vector<std::pair<int, int>> found;
  for (std::size_t b = 0; b < mask.size(); ++b) {
    const Rect r = visible_part(mask[b], strip);
    if (r.empty()) continue;
    for (int c = r.col0 / col_block; c <= (r.col1 - 1) / col_block; ++c) {
      found.emplace_back(c, static_cast<int>(b));
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

void add_strip(std::span<const TileBand> mask, const Rect& strip, int row_block, int col_block,
               TileIndex& out) {
  const auto found = meetings(mask, strip, col_block);
  for (std::size_t i = 0; i < found.size();) {
    const int c = found[i].first;
    const Rect block{strip.row0, strip.row1, c * col_block,
                     std::min((c + 1) * col_block, strip.col1)};
    std::vector<TileBand> bands;
    for (; i < found.size() && found[i].first == c; ++i) {
      bands.push_back(mask[static_cast<std::size_t>(found[i].second)]);
    }
    const bool inside =
        block.row1 - block.row0 == row_block && block.col1 - block.col0 == col_block;
    if (inside && cover(bands, block)) {
      out.entries.push_back({c, 0, 0, 0});
      continue;
    }
    const int flags = tile_partial | (has_holes(bands, block) ? tile_holes : 0);
    out.entries.push_back(
        {c, flags, static_cast<int>(out.bands.size()), static_cast<int>(bands.size())});
    out.bands.insert(out.bands.end(), bands.begin(), bands.end());
  }
}

}  // namespace

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
                      int col_block) {
  TileIndex found, out;
  std::vector<int> blocks, begin{0};
  for (int r = 0; r < rows; r += row_block) {
    add_strip(mask, {r, std::min(r + row_block, rows), 0, cols}, row_block, col_block, found);
    begin.push_back(static_cast<int>(found.entries.size()));
    if (begin.back() > *(begin.end() - 2)) blocks.push_back(r / row_block);
  }
  const auto work = [&](int b) { return begin[b + 1] - begin[b]; };
  std::stable_sort(blocks.begin(), blocks.end(), [&](int a, int b) { return work(a) > work(b); });
  out.begin.push_back(0);
  for (const int b : blocks) {
    out.order.push_back(b);
    out.entries.insert(out.entries.end(), found.entries.begin() + begin[b],
                       found.entries.begin() + begin[b + 1]);
    out.begin.push_back(static_cast<int>(out.entries.size()));
  }
  out.bands = std::move(found.bands);
  return out;
}

}  // namespace tessera::kernels::cuda
