// SPDX-License-Identifier: Apache-2.0
// Every scheme, every divisor pair, on real ranks against the fp64 oracle (attention brief 12,
// tests 1, 4, 5, 7, 11): forward O and LSE, backward dQ, dK, dV and dsink, counted bytes equal to
// the formulas, plans without faults.
#include <fmt/format.h>

#include "attention_runs.hpp"
#include "kernels/reference/register.hpp"
#include "test_main.hpp"

namespace tessera::test {
namespace {

/// On host ranks with the reference operators.
int run_case(const Problem& p, double tolerance) {
  ops::Registry registry;
  kernels::register_reference(registry);
  Budget budget;
  return test::run_case(p, tolerance, {world(), registry, budget}, schemes_for(p, world().size()));
}

void report(const char* what, int runs) {
  if (world().rank() == 0) fmt::print("{}: {} runs on {} ranks\n", what, runs, world().size());
}

const MaskShape square{1, 53, 53};

TEST(AttentionSchemes, AllMasksAllLayouts_f64) {
  const std::vector<std::int64_t> docs{1, 5, 6, 7, 20, 9};
  const std::vector<Range> regions{{4, 11}, {30, 45}};
  const std::vector<AttnSlice> slices{
      {0, 9, 0, 12, 0}, {9, 30, 3, 40, 1}, {30, 41, 20, 35, 2}, {30, 41, 40, 53, 3}};
  const std::vector<Mask> masks{full_mask(square),
                                causal_mask(square, false),
                                window_mask(square, 1),
                                window_mask(square, 9),
                                window_mask(square, 30),
                                document_mask(square, docs, true),
                                document_mask(square, docs, false),
                                block_causal_mask(square, 8),
                                prefix_mask(square, 17),
                                region_mask(square, regions),
                                slice_mask(square, slices)};
  int runs = 0;
  for (const Mask& m : masks)
    for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped, Layout::balanced})
      runs += run_case(
          problem(square, m, world().size() % 5 == 0 ? 5 : 12, 6, 4, 4, DType::f64, layout), 1e-10);
  report("11 masks x 4 layouts", runs);
}

TEST(AttentionSchemes, HeadsAndDims_f64) {
  int runs = 0;
  for (auto [hq, hk, d, dv] : std::vector<std::array<int, 4>>{
           {16, 16, 8, 8}, {16, 8, 8, 8}, {16, 2, 6, 4}, {48, 1, 4, 4}, {9, 3, 4, 7}})
    runs += run_case(
        problem(square, causal_mask(square, false), hq, hk, d, dv, DType::f64, Layout::zigzag),
        1e-10);
  report("MHA, GQA, MQA, unequal dims", runs);
}

TEST(AttentionSchemes, BatchAndUnlikeLengths_f64) {
  int runs = 0;
  const MaskShape batch{3, 33, 33}, few_queries{1, 19, 61}, few_keys{2, 41, 17};
  for (Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
    runs +=
        run_case(problem(batch, causal_mask(batch, false), 4, 2, 4, 4, DType::f64, layout), 1e-10);
    runs += run_case(
        problem(few_queries, causal_mask(few_queries, true), 4, 4, 4, 4, DType::f64, layout),
        1e-10);
    runs += run_case(problem(few_keys, causal_mask(few_keys, true), 4, 4, 4, 4, DType::f64, layout),
                     1e-10);
  }
  report("batch 3, 19 x 61 and 41 x 17 bottom-right", runs);
}

TEST(AttentionSchemes, SinkAndSoftcap_f64) {
  Problem p = problem(square, window_mask(square, 9), 12, 6, 4, 4, DType::f64, Layout::zigzag);
  p.sink = true;
  int runs = run_case(p, 1e-10);
  p.softcap = 1.5;
  runs += run_case(p, 1e-10);
  report("sink, sink and softcap", runs);
}

TEST(AttentionSchemes, LowPrecision) {
  const MaskShape s{1, 130, 130};
  int runs = 0;
  // In a window of one key dQ and dK vanish: rounding is measured against the other gradients.
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Mask& mask : {causal_mask(s, false), window_mask(s, 1)})
      runs += run_case(problem(s, mask, 12, 6, 16, 16, type, Layout::zigzag), 2.0);
  report("f32, bf16, f16: error at most 2 x the plain one-rank path", runs);
}

}  // namespace
}  // namespace tessera::test
