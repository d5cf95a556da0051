// SPDX-License-Identifier: Apache-2.0
// Layouts: every token once, padding where it belongs, zigzag balance (attention brief 2.7, 12.10).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>

#include "attention/context.hpp"
#include "attention/problem.hpp"
#include "base/error.hpp"

namespace tessera::attention {
namespace {

TEST(AttentionLayout, EveryTokenOnce_all_layouts) {
  for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
    for (int n = 1; n <= 9; ++n)
      for (std::int64_t batch : {1, 3})
        for (std::int64_t tokens : {n, n + 1, 2 * n, 26, 2999}) {
          const std::int64_t size = padded(tokens, padding_multiple(layout, n));
          std::vector<int> seen(batch * tokens);
          for (int i = 0; i < n; ++i) {
            const Rows rows = chunk_rows(layout, n, i, batch, tokens, size);
            EXPECT_EQ(count(rows), batch * size / n);
            for (std::int64_t g : expand(rows))
              if (g >= 0) ++seen.at(static_cast<std::size_t>(g));
          }
          for (int s : seen)
            ASSERT_EQ(s, 1) << name_of(layout) << " n " << n << " tokens " << tokens;
        }
}

TEST(AttentionLayout, Names_are_distinct) {
  // Decks choose a layout by its name: two of one name would run the wrong one without a sign.
  const Layout all[] = {Layout::contiguous, Layout::zigzag, Layout::striped, Layout::balanced};
  std::set<std::string_view> names;
  for (Layout layout : all) names.insert(name_of(layout));
  EXPECT_EQ(names, (std::set<std::string_view>{"contiguous", "zigzag", "striped", "balanced"}));
}

TEST(AttentionLayout, OB_026_zigzag_keeps_global_positions) {
  EXPECT_EQ(expand(chunk_rows(Layout::zigzag, 2, 0, 1, 8, 8)),
            (std::vector<std::int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(expand(chunk_rows(Layout::zigzag, 2, 1, 1, 8, 8)),
            (std::vector<std::int64_t>{2, 3, 4, 5}));
}

TEST(AttentionLayout, OB_003_odd_length_keeps_its_last_token) {
  std::int64_t valid = 0;
  for (int i = 0; i < 2; ++i) valid += count_valid(chunk_rows(Layout::zigzag, 2, i, 1, 7, 8));
  EXPECT_EQ(valid, 7);
}

TEST(AttentionLayout, OB_001_uneven_length_gives_equal_chunks) {
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(count(chunk_rows(Layout::zigzag, 4, i, 1, 2999, 3000)), 750);
}

Problem causal_problem(std::int64_t n, Layout layout) {
  Problem p;
  p.sequence = p.key_sequence = n;
  p.query_heads = p.kv_heads = 8;
  p.layout = layout;
  p.mask = causal_mask({1, n, n}, false);
  return p;
}

TEST(AttentionLayout, ZigzagBalance_every_tile_shape_exact) {
  for (int n : {2, 3, 4, 6, 8, 9, 12})
    for (int a = 1; a <= n; ++a) {
      if (n % a != 0) continue;
      const int b = n / a;
      const Context c(causal_problem(16 * n, Layout::zigzag), {SchemeKind::mesh, a, b}, n,
                      Pass::forward);
      std::vector<std::int64_t> work(n);
      for (int g = 0; g < n; ++g)
        for (int s = 0; s < a; ++s)
          for (int t = 0; t < b; ++t) work[g] += c.map.area(g / a * a + s, g % a + a * t);
      for (std::int64_t w : work) EXPECT_EQ(w, work[0]) << a << "x" << b;
    }
}

TEST(AttentionLayout, OB_024_OB_025_head_split_depends_on_the_problem_alone) {
  Problem three = causal_problem(64, Layout::zigzag), twelve = three;
  three.query_heads = three.kv_heads = 4;
  twelve.query_heads = twelve.kv_heads = 12;
  const Scheme ulysses{SchemeKind::ulysses};
  for (int round = 0; round < 2; ++round) {
    for (int r = 0; r < 4; ++r)
      EXPECT_EQ(heads_of(twelve, make_split(twelve, ulysses, 4), r).kv, (Range{3 * r, 3 * r + 3}));
    for (int r = 0; r < 4; ++r)
      EXPECT_EQ(heads_of(three, make_split(three, ulysses, 4), r).kv, (Range{r, r + 1}));
  }
}

/// Document lengths with the long tail of real text: many short ones, a few very long.
std::vector<std::int64_t> recorded_lengths(std::int64_t tokens) {
  // Words of the licence texts in /usr/share/common-licenses of Debian 12.
  const std::int64_t words[] = {1581, 970,  225,  1066, 3671, 3691, 2058, 2968,
                                5641, 4377, 4153, 1291, 1133, 2402, 2645, 7474};
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; tokens > 0; ++i) {
    out.push_back(std::min(words[i % std::size(words)], tokens));
    tokens -= out.back();
  }
  return out;
}

TEST(AttentionLayout, DispatchSolver_balances_recorded_documents) {
  const std::int64_t tokens = 131072;
  Problem p = causal_problem(tokens, Layout::balanced);
  p.mask = document_mask({1, tokens, tokens}, recorded_lengths(tokens), true);
  for (int n : {2, 4, 8, 16, 32}) {
    const Context c(p, {SchemeKind::ring}, n, Pass::forward);
    std::vector<std::int64_t> work(n);
    for (int q = 0; q < n; ++q) {
      EXPECT_EQ(count(query_chunk(p, c.split, q)), tokens / n);  // equal tokens,
      for (int k = 0; k < n; ++k) work[q] += c.map.area(q, k);
    }
    const double mean = static_cast<double>(p.mask.area()) / n;
    const double most = static_cast<double>(*std::max_element(work.begin(), work.end()));
    EXPECT_LE(most / mean, 1.05) << n << " ranks";  // and equal work
    Problem z = p;
    z.layout = Layout::zigzag;
    const Context zigzag(z, {SchemeKind::ring}, n, Pass::forward);
    double zigzag_most = 0;
    for (int q = 0; q < n; ++q) {
      double w = 0;
      for (int k = 0; k < n; ++k) w += static_cast<double>(zigzag.map.area(q, k));
      zigzag_most = std::max(zigzag_most, w);
    }
    std::printf("%d ranks: max/mean balanced %.4f, zigzag %.4f\n", n, most / mean,
                zigzag_most / mean);
  }
}

TEST(AttentionLayout, Balanced_every_token_once_with_batch_and_padding) {
  for (int n : {1, 2, 3, 5})
    for (std::int64_t batch : {1, 3})
      for (std::int64_t tokens : {7, 50, 333}) {
        Problem p = causal_problem(tokens, Layout::balanced);
        p.batch = batch;
        p.mask = causal_mask({batch, tokens, tokens}, false);
        const Split s = make_split(p, {SchemeKind::ring}, n);
        std::vector<int> seen(batch * tokens);
        for (int i = 0; i < n; ++i) {
          EXPECT_EQ(count(query_chunk(p, s, i)), batch * s.q_padded / n);
          for (std::int64_t g : expand(query_chunk(p, s, i)))
            if (g >= 0) ++seen.at(static_cast<std::size_t>(g));
        }
        for (int x : seen) ASSERT_EQ(x, 1);
      }
}

void expect_refusal(const Problem& p, const Scheme& s, int n, const std::string& key) {
  try {
    validate(p, s, n);
    ADD_FAILURE() << "accepted: " << s.text() << " on " << n;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(e.message().find(key), std::string::npos) << e.what();
    EXPECT_FALSE(e.hint().empty());
  }
}

TEST(AttentionLayout, BadShapes_are_refused_by_key) {
  Problem p = causal_problem(64, Layout::zigzag);
  expect_refusal(p, {SchemeKind::ulysses}, 16, "query_heads = 8");
  expect_refusal(p, {SchemeKind::mesh, 3, 2}, 4, "attention.mesh.a = 3");
  expect_refusal(p, {SchemeKind::double_ring, 0, 0, 3}, 4, "attention.double_ring.inner = 3");
  expect_refusal(p, {SchemeKind::unified, 0, 0, 0, 3}, 4, "attention.unified.ulysses = 3");
  Scheme sliced{SchemeKind::ulysses};
  sliced.slices = 3;
  expect_refusal(p, sliced, 4, "attention.ulysses.slices = 3");
  p.kv_heads = 3;
  expect_refusal(p, {SchemeKind::ring}, 4, "attention.kv_heads = 3");
  p.kv_heads = 8;
  Problem unlike = p;
  unlike.layout = Layout::balanced;
  unlike.key_sequence = 32;
  expect_refusal(unlike, {SchemeKind::ring}, 4, "attention.layout = \"balanced\"");
  p.sequence = 3;
  expect_refusal(p, {SchemeKind::ring}, 4, "attention.sequence = 3");
}

}  // namespace
}  // namespace tessera::attention
