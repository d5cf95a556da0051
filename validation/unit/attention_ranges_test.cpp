// SPDX-License-Identifier: Apache-2.0
// What steps of plans touch: tiles just the rows that their mask lets through, sums just what was
// added, exchanges of head groups one step for many parts.
#include <gtest/gtest.h>

#include "attention/context.hpp"
#include "attention/labels.hpp"
#include "attention_cases.hpp"
#include "plan/count.hpp"

namespace tessera::test {
namespace {

bool sees(const Mask& mask, std::int64_t q, std::int64_t k) {
  return std::any_of(mask.bands().begin(), mask.bands().end(), [&](const Band& b) {
    const Range keys = b.keys_of(q);
    return q >= 0 && k >= keys.begin && k < keys.end;
  });
}

std::int64_t pairs(const Mask& mask, const Rows& q, const Rows& k) {
  std::int64_t n = 0;
  const auto columns = expand(k);
  for (const std::int64_t i : expand(q))
    for (const std::int64_t j : columns) n += sees(mask, i, j);
  return n;
}

/// All visible pairs of the two chunks are in the tile, and none of its sides can be shorter.
void expect_smallest(const Context& c, int rank, const plan::Plan& plan, const plan::Step& s,
                     const std::string& what) {
  const auto [q, k] = tile_rows(c, rank, s.index);
  const auto uses = plan.uses(s);
  ASSERT_EQ(uses[0].d0.size(), count(q)) << what;
  ASSERT_EQ(uses[1].d0.size(), count(k)) << what;
  const Mask& mask = c.problem.mask;
  const int q_chunk = s.index.i / (c.split.u * c.split.slices);
  ASSERT_EQ(pairs(mask, q, k), pairs(mask, query_chunk(c.problem, c.split, q_chunk),
                                     key_chunk(c.problem, c.split, s.index.j)))
      << what;
  for (const std::int64_t at : {std::int64_t{0}, count(q) - 1})
    EXPECT_GT(pairs(mask, slice(q, Range{at, at + 1}), k), 0) << what << ": query " << at;
  for (const std::int64_t at : {std::int64_t{0}, count(k) - 1})
    EXPECT_GT(pairs(mask, q, slice(k, Range{at, at + 1})), 0) << what << ": key " << at;
}

TEST(AttentionRanges, Tiles_hold_what_their_mask_touches) {
  const MaskShape one{1, 31, 31}, two{2, 15, 15};
  const std::vector<std::int64_t> docs{1, 5, 6, 7, 12};
  const std::vector<AttnSlice> slices{
      {0, 9, 0, 12, 0}, {9, 20, 3, 28, 1}, {20, 26, 10, 20, 2}, {20, 26, 25, 31, 3}};
  int tiles = 0;
  for (const Mask& mask :
       {full_mask(one), causal_mask(two, false), window_mask(one, 1), window_mask(one, 9),
        document_mask(one, docs, true), prefix_mask(one, 7), slice_mask(one, slices)})
    for (const Layout layout :
         {Layout::contiguous, Layout::zigzag, Layout::striped, Layout::balanced})
      for (const int n : {1, 2, 4}) {
        const MaskShape& s = mask.kind() == "causal" ? two : one;
        const Problem p = problem(s, mask, 4, 4, 2, 2, DType::bf16, layout);
        for (const Scheme& x : schemes_for(p, n))
          for (const Pass pass : {Pass::forward, Pass::backward}) {
            Context c(p, x, n, pass);
            c.scheme = normal(x, c.split.r);
            const plan::Program program = make_program(p, x, n, pass, test_machine());
            for (int rank = 0; rank < n; ++rank)
              for (const plan::Step& step : program.plans[rank].steps)
                if (step.index.kind == plan::Index::Kind::tile) {
                  expect_smallest(c, rank, program.plans[rank], step, program.name);
                  ++tiles;
                }
          }
      }
  EXPECT_GT(tiles, 10000);
}

/// Rows of the first argument that a step touches, in parts of a chunk of 64 rows.
double share(const plan::Plan& plan, const plan::Step& s, std::size_t argument) {
  return static_cast<double>(plan.uses(s)[argument].d0.size()) / 64;
}

/// Causal, zigzag: queries see the first half of earlier chunks, and of later ones only their
/// second half sees anything. Travelling gradients grow by just that.
TEST(AttentionRanges, CausalZigzag_tiles_are_half) {
  const int n = 4;
  const MaskShape s{1, 64 * n, 64 * n};
  const Problem p = problem(s, causal_mask(s, false), 2, 2, 8, 8, DType::bf16, Layout::zigzag);
  for (const Scheme& x : {Scheme{SchemeKind::ring}, Scheme{SchemeKind::mesh, 2, 2}}) {
    const plan::Program program = make_program(p, x, n, Pass::backward, test_machine());
    double added = 0, tiles = 0;
    for (const plan::Plan& plan : program.plans)
      for (const plan::Step& step : plan.steps) {
        if (step.label == label::backward_tile) {
          EXPECT_EQ(share(plan, step, 0), step.index.i >= step.index.j ? 1 : 0.5) << program.name;
          EXPECT_EQ(share(plan, step, 1), step.index.i <= step.index.j ? 1 : 0.5) << program.name;
          ++tiles;
        }
        if (step.label == label::backward_add) added += share(plan, step, 0);
      }
    EXPECT_EQ(tiles, n * n);
    // Ring: rank q adds to those of the chunks two and three before it, modulo 4: whole where the
    // chunk is a later one. Mesh: one dQ for each rank, whole but for chunk 0; its dK, dV are sums.
    EXPECT_EQ(added, x.kind == SchemeKind::ring ? 6.5 : 3.5) << program.name;
  }
}

TEST(AttentionRanges, Ulysses_packs_and_unpacks_in_few_steps) {
  const int n = 4;
  const MaskShape s{1, 64, 64};
  for (const int kv_heads : {16, 2})
    for (const int slices : {1, 2}) {
      const Problem p =
          problem(s, causal_mask(s, false), 16, kv_heads, 8, 8, DType::bf16, Layout::zigzag);
      Scheme x{SchemeKind::ulysses};
      x.slices = slices;
      if (kv_heads < n && slices > 1) continue;  // replicated heads are not cut
      for (const Pass pass : {Pass::forward, Pass::backward})
        for (const auto& c : plan::count(make_program(p, x, n, pass, test_machine()), n)) {
          const bool sums = kv_heads < n && pass == Pass::backward;  // and one for its own rows
          // Backward cuts the statistics of a slice out of those of all heads.
          const int statistics = slices > 1 && pass == Pass::backward ? slices : 0;
          EXPECT_EQ(c.steps_by_label.at(label::pack), slices + statistics);
          EXPECT_EQ(c.steps_by_label.at(label::unpack), sums ? 2 * (n - 1) + 1 : slices * (n - 1));
        }
    }
}

}  // namespace
}  // namespace tessera::test
