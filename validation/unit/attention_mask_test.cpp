// SPDX-License-Identifier: Apache-2.0
// Masks against an N x N boolean oracle that is written down from the definition of each kind, and
// the tiles cut from them (attention brief 12, test 4; field reports 2).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>

#include "attention/mask.hpp"
#include "base/error.hpp"

namespace tessera::attention {
namespace {

using Visible = std::function<bool(std::int64_t, std::int64_t)>;

std::vector<std::vector<char>> cells(const std::vector<Band>& bands, std::int64_t rows,
                                     std::int64_t cols) {
  std::vector<std::vector<char>> m(rows, std::vector<char>(cols));
  for (const Band& b : bands)
    for (std::int64_t q = 0; q < rows; ++q) {
      const Range k = b.keys_of(q);
      for (std::int64_t j = k.begin; j < k.end; ++j) m[q][j] += 1;  // 2 would be a double cover
    }
  return m;
}

void expect_mask(const Mask& m, const Visible& visible) {
  const auto got = cells(m.bands(), m.rows(), m.cols());
  std::int64_t area = 0;
  for (std::int64_t q = 0; q < m.rows(); ++q)
    for (std::int64_t k = 0; k < m.cols(); ++k) {
      ASSERT_EQ(int(got[q][k]), int(visible(q, k))) << m.kind() << " q " << q << " k " << k;
      area += visible(q, k);
    }
  EXPECT_EQ(m.area(), area);
  // Tiles of every layout see the same cells, in local coordinates.
  for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (int n : {1, 2, 3, 4}) {
      const auto rows_of = [&](std::int64_t total, int i) {
        return chunk_rows(layout, n, i, 1, total, padded(total, padding_multiple(layout, n)));
      };
      std::int64_t sum = 0;
      for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) {
          const Rows q = rows_of(m.rows(), i), k = rows_of(m.cols(), j);
          const auto tile = cells(m.cut(q, k), count(q), count(k));
          const auto gq = expand(q), gk = expand(k);
          Extent extent;
          for (std::int64_t a = 0; a < std::ssize(gq); ++a)
            for (std::int64_t b = 0; b < std::ssize(gk); ++b) {
              const bool seen = gq[a] >= 0 && gk[b] >= 0 && visible(gq[a], gk[b]);
              ASSERT_EQ(int(tile[a][b]), seen ? 1 : 0) << m.kind();
              if (!seen) continue;
              extent.queries = hull(extent.queries, {a, a + 1});
              extent.keys = hull(extent.keys, {b, b + 1});
            }
          EXPECT_EQ(m.extent(q, k).queries, extent.queries) << m.kind();
          EXPECT_EQ(m.extent(q, k).keys, extent.keys) << m.kind();
          sum += m.area(q, k);
        }
      EXPECT_EQ(sum, area) << m.kind();
    }
}

TEST(AttentionMask, EveryKind_against_boolean_oracle) {
  for (MaskShape s : {MaskShape{1, 23, 23}, MaskShape{2, 12, 12}}) {
    const auto n = s.queries;
    auto same = [n](std::int64_t q, std::int64_t k) { return q / n == k / n; };
    expect_mask(full_mask(s), same);
    expect_mask(causal_mask(s, false), [&](auto q, auto k) { return same(q, k) && k <= q; });
    for (std::int64_t w : {1, 3, 12, 40})
      expect_mask(window_mask(s, w),
                  [&](auto q, auto k) { return same(q, k) && k <= q && q - k < w; });
    for (std::int64_t b : {1, 5, 50})
      expect_mask(block_causal_mask(s, b),
                  [&](auto q, auto k) { return same(q, k) && k % n / b <= q % n / b; });
    for (std::int64_t p : {0, 4, 12})
      expect_mask(prefix_mask(s, p),
                  [&](auto q, auto k) { return same(q, k) && (k % n < p || k <= q); });
  }
  const MaskShape s{1, 23, 23};
  const std::vector<Range> regions{{3, 7}, {9, 10}, {15, 23}};
  expect_mask(region_mask(s, regions), [&](auto q, auto k) {
    for (const Range& r : regions)
      if (q >= r.begin && q < r.end && k >= r.begin && k < r.end) return true;
    return k <= q;
  });
}

TEST(AttentionMask, Documents_lengths_1_to_N) {
  const MaskShape s{1, 24, 24};
  for (const std::vector<std::int64_t>& lengths :
       std::vector<std::vector<std::int64_t>>{{1, 5, 6, 7, 5}, {24}, {1, 1, 1}, {12, 12}}) {
    std::vector<int> id(24, -1);
    std::int64_t at = 0;
    for (std::size_t d = 0; d < lengths.size(); ++d)
      for (std::int64_t i = 0; i < lengths[d]; ++i) id[at++] = static_cast<int>(d);
    auto same = [&](auto q, auto k) { return id[q] >= 0 && id[q] == id[k]; };
    expect_mask(document_mask(s, lengths, true),
                [&](auto q, auto k) { return same(q, k) && k <= q; });
    expect_mask(document_mask(s, lengths, false), same);
  }
}

TEST(AttentionMask, Slices_all_types_against_the_published_formula) {
  const MaskShape s{1, 20, 30};
  for (int type = 0; type < 4; ++type)
    for (auto [q0, q1, k0, k1] :
         std::vector<std::array<std::int64_t, 4>>{{2, 12, 3, 25}, {0, 20, 5, 9}, {7, 8, 0, 30}}) {
      const AttnSlice x{q0, q1, k0, k1, type};
      expect_mask(slice_mask(s, std::span(&x, 1)), [&](auto q, auto k) {
        if (q < x.q0 || q >= x.q1) return false;
        const auto begin = x.k0 + (type & 2 ? q - x.q0 : 0),
                   end = x.k1 - (type & 1 ? x.q1 - q - 1 : 0);
        return k >= begin && k < end;
      });
    }
}

TEST(AttentionMask, RandomBands_area_equals_count) {
  std::mt19937 random(5);
  for (int i = 0; i < 3000; ++i) {
    auto r = [&](int lo, int hi) {
      return std::uniform_int_distribution<std::int64_t>(lo, hi)(random);
    };
    Band b{r(0, 10), r(0, 14), r(0, 10), r(0, 14), r(-16, 10), r(-10, 16)};
    if (r(0, 3) == 0) b.lo = -Band::unbounded;
    if (r(0, 3) == 0) b.hi = Band::unbounded;
    std::int64_t n = 0;
    for (std::int64_t q = 0; q < 14; ++q) n += b.keys_of(q).size();
    ASSERT_EQ(area(b), n) << i;
    const Band t = tight(b);
    std::int64_t m = 0;
    for (std::int64_t q = 0; q < 14; ++q) {
      m += t.keys_of(q).size();
      if (!b.keys_of(q).empty()) ASSERT_EQ(t.keys_of(q), b.keys_of(q)) << i;
    }
    ASSERT_EQ(m, n) << i;
  }
}

Rows chunk(Layout layout, int n, int i, std::int64_t rows) {
  return chunk_rows(layout, n, i, 1, rows, padded(rows, padding_multiple(layout, n)));
}

/// All tiles of a mask, of n query chunks and n key chunks.
void each_zigzag_tile(
    const Mask& m, int n,
    const std::function<void(int i, int j, const std::vector<Band>& bands)>& check) {
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j)
      check(i, j,
            m.cut(chunk(Layout::zigzag, n, i, m.rows()), chunk(Layout::zigzag, n, j, m.cols())));
}

TEST(AttentionMask, Zigzag_tiles_of_a_causal_mask_are_one_band_each) {
  for (int n : {2, 4, 8}) {
    const std::int64_t half = 12, whole = 2 * half;
    each_zigzag_tile(causal_mask({1, n * whole, n * whole}, false), n,
                     [&](int i, int j, const std::vector<Band>& bands) {
                       ASSERT_EQ(bands.size(), 1u) << n << " chunks, tile " << i << ", " << j;
                       Band expected{0, whole, 0, whole};
                       if (i == j) expected.hi = 0;
                       if (i > j) expected.k1 = half;  // all queries see the early keys
                       if (i < j) expected.q0 = half;  // the late queries see all keys
                       EXPECT_EQ(bands[0], expected) << n << " chunks, tile " << i << ", " << j;
                     });
  }
}

TEST(AttentionMask, Zigzag_tiles_of_a_full_mask_are_whole) {
  for (int n : {2, 4, 8})
    each_zigzag_tile(full_mask({1, n * 10, n * 14}), n,
                     [&](int i, int j, const std::vector<Band>& bands) {
                       const std::vector<Band> expected{{0, 10, 0, 14}};
                       EXPECT_EQ(bands, expected) << n << " chunks, tile " << i << ", " << j;
                     });
}

TEST(AttentionMask, Tiles_of_the_other_layouts_are_one_band_where_they_can_be) {
  const Mask m = causal_mask({1, 64, 64}, false);
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      // Token t is on rank t mod 4, so the diagonal belongs to the tile when i >= j.
      const auto bands = m.cut(chunk(Layout::striped, 4, i, 64), chunk(Layout::striped, 4, j, 64));
      const std::vector<Band> on{{0, 16, 0, 16, -Band::unbounded, 0}};
      const std::vector<Band> off{{1, 16, 0, 15, -Band::unbounded, -1}};
      EXPECT_EQ(bands, i >= j ? on : off) << i << ", " << j;
    }
  // Pieces, as the balanced layout deals them, with padding behind.
  const Rows pieces{{3, 1, 5}, {20, 1, 2}, {40, 1, 9}, {60, 1, 4}, {-1, 1, 4}};
  const std::vector<Band> own{{0, 20, 0, 20, -Band::unbounded, 0}};
  EXPECT_EQ(m.cut(pieces, pieces), own);
}

TEST(AttentionMask, Slices_that_are_one_band_are_cut_as_one) {
  const AttnSlice upper_right{0, 32, 0, 32, 2};  // key >= query
  const Mask m = slice_mask({1, 32, 32}, std::span(&upper_right, 1));
  const std::vector<Band> own{{0, 16, 0, 16, 0}};
  for (int i = 0; i < 2; ++i) {
    const Rows rows = chunk(Layout::zigzag, 2, i, 32);
    EXPECT_EQ(m.cut(rows, rows), own) << i;
  }
  // A pinwheel: no two of the five rectangles make a third one.
  const std::vector<AttnSlice> wheel{
      {0, 1, 0, 2, 0}, {0, 2, 2, 3, 0}, {1, 3, 0, 1, 0}, {1, 2, 1, 2, 0}, {2, 3, 1, 3, 0}};
  const Rows all{{0, 1, 3}};
  const std::vector<Band> square{{0, 3, 0, 3}};
  EXPECT_EQ(slice_mask({1, 3, 3}, wheel).cut(all, all), square);
}

/// Bands in the rectangles of a random grid, some of them full, causal along one diagonal, empty.
std::vector<Band> random_bands(std::mt19937& random, std::int64_t rows, std::int64_t cols) {
  const auto draw = [&](std::int64_t a, std::int64_t b) {
    return std::uniform_int_distribution<std::int64_t>(a, b)(random);
  };
  const auto cuts = [&](std::int64_t size) {
    std::vector<std::int64_t> c{0, draw(0, size), draw(0, size), size};
    std::sort(c.begin(), c.end());
    return c;
  };
  const auto q = cuts(rows), k = cuts(cols);
  const std::int64_t diagonal = draw(-3, 3), width = draw(0, 20);
  std::vector<Band> out;
  for (std::size_t a = 0; a + 1 < q.size(); ++a)
    for (std::size_t b = 0; b + 1 < k.size(); ++b) {
      const std::int64_t kind = draw(0, 3);
      Band band{q[a], q[a + 1], k[b], k[b + 1]};
      if (kind == 0) continue;
      if (kind & 2) band.hi = diagonal;
      if (kind == 3) band.lo = diagonal - width;
      out.push_back(band);
    }
  return out;
}

TEST(AttentionMask, RandomBands_cut_keeps_every_cell_in_no_more_bands) {
  std::mt19937 random(17);
  int joined = 0;
  for (int round = 0; round < 400; ++round) {
    const std::int64_t rows = 16 + random() % 33, cols = 16 + random() % 33;
    const Mask m("random", {1, rows, cols}, random_bands(random, rows, cols));
    const auto layout = std::array{Layout::contiguous, Layout::zigzag, Layout::striped}[round % 3];
    const int n = 1 + static_cast<int>(random() % 4);
    const Rows q = chunk(layout, n, static_cast<int>(random() % n), rows);
    const Rows k = chunk(layout, n, static_cast<int>(random() % n), cols);
    const auto bands = m.cut(q, k);
    const auto tile = cells(bands, count(q), count(k)), all = cells(m.bands(), rows, cols);
    const auto gq = expand(q), gk = expand(k);
    for (std::size_t i = 0; i < gq.size(); ++i)
      for (std::size_t j = 0; j < gk.size(); ++j)
        ASSERT_EQ(int(tile[i][j]), gq[i] < 0 || gk[j] < 0 ? 0 : int(all[gq[i]][gk[j]]))
            << "round " << round << ", cell " << i << ", " << j;
    // Every pair of segments by itself: what a cut gives that joins nothing.
    std::size_t parts = 0;
    for (const Segment& a : q)
      for (const Segment& b : k)
        for (const Band& band : m.bands())
          parts += Mask("one", {1, rows, cols}, {band}).cut({a}, {b}).size();
    ASSERT_LE(bands.size(), parts) << "round " << round;
    joined += bands.size() < parts;
    for (const Band& b : bands) ASSERT_EQ(b, tight(b)) << "round " << round;
  }
  EXPECT_GT(joined, 40) << "the test should meet tiles whose bands can be joined";
}

TEST(AttentionMask, OB_007_bottom_right_is_by_global_position) {
  const Mask m = causal_mask({1, 4, 8}, true);
  for (std::int64_t q = 0; q < 4; ++q) EXPECT_EQ(m.bands()[0].keys_of(q).end, q + 5);
  const Mask few =
      causal_mask({1, 5, 2}, true);  // 5 queries on the last 2 keys: 3 rows see nothing
  EXPECT_EQ(few.area(), 3);
  for (std::int64_t q = 0; q < 3; ++q) EXPECT_TRUE(few.bands()[0].keys_of(q).empty());
}

TEST(AttentionMask, OB_008_window_counts_the_token_itself) {
  EXPECT_EQ(window_mask({1, 16, 16}, 4).area(), 58);
}

TEST(AttentionMask, OB_010_transposed_counts_follow_a_shorter_mask) {
  const Mask m = causal_mask({1, 8 * 128, 8 * 128}, false);
  for (int j = 0; j < 8; ++j) {
    int full = 0;
    for (int i = 0; i < 8; ++i)
      full += m.area({{i * 128, 1, 128}}, {{j * 128, 1, 128}}) == 128 * 128;
    EXPECT_EQ(full, 7 - j);
  }
}

TEST(AttentionMask, OB_011_only_listed_tiles_are_seen) {
  const std::vector<AttnSlice> x{{0, 4, 0, 4, 0}, {4, 8, 4, 8, 0}};
  EXPECT_EQ(slice_mask({1, 8, 8}, x).area(), 32);
}

TEST(AttentionMask, OB_012_sparsity_counts_true_pairs) {
  const std::vector<std::int64_t> docs{10, 10, 20, 20, 20, 20};
  EXPECT_EQ(document_mask({1, 100, 100}, docs, true).area(), 950);
}

TEST(AttentionMask, OB_013_a_pair_in_two_slices_is_refused) {
  const std::vector<AttnSlice> x{{0, 4, 0, 3, 0}, {2, 6, 2, 4, 0}};
  try {
    slice_mask({1, 8, 8}, x);
    FAIL() << "overlap was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("query 2, key 2"), std::string::npos) << e.what();
  }
}

TEST(AttentionMask, OB_006_longest_document_is_a_difference_of_neighbours) {
  const std::vector<std::int64_t> docs{2, 4, 2};  // boundaries 0, 2, 6, 8
  std::int64_t longest = 0;
  const Mask mask = document_mask({1, 8, 8}, docs, true);
  for (const Band& b : mask.bands()) longest = std::max(longest, b.q1 - b.q0);
  EXPECT_EQ(longest, 4);
}

TEST(AttentionMask, OB_027_areas_and_offsets_do_not_wrap_in_32_bits) {
  const std::int64_t n = 46341;
  EXPECT_EQ(full_mask({1, n, n}).area(), n * n);
  EXPECT_EQ(n * 46340 + 46340, std::int64_t{2147488280});
  EXPECT_EQ(causal_mask({1, 1 << 20, 1 << 20}, false).area(),
            (std::int64_t{1} << 19) * ((1 << 20) + 1));
}

TEST(AttentionMask, Hash_differs_when_one_slice_moves) {
  const std::vector<std::int64_t> a{3, 5}, b{5, 3};
  EXPECT_NE(document_mask({1, 8, 8}, a, true).hash(), document_mask({1, 8, 8}, b, true).hash());
  EXPECT_EQ(document_mask({1, 8, 8}, a, true).hash(), document_mask({1, 8, 8}, a, true).hash());
}

}  // namespace
}  // namespace tessera::attention
