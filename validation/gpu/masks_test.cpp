// SPDX-License-Identifier: Apache-2.0
// Masks with gaps over so many blocks and heads that every multiprocessor has several in turn, one
// kernel with tensor cores after the other against the plain one on the same device.
#include <fmt/format.h>

#include "perf/tile_masks.hpp"
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

constexpr std::int64_t tokens = 1536;

std::vector<ops::Band> documents() {
  std::vector<ops::Band> bands;
  std::int64_t at = 0;
  for (const std::int64_t length : {300, 97, 641, 128, 20, 350}) {
    bands.push_back({at, at + length, at, at + length, -open, 0});
    at += length;
  }
  return bands;
}

/// Products are of bf16 numbers in both; ours round the weights to bf16 too.
void expect_close(const Array& ours, const Array& plain, const std::string& what) {
  const double error = distance(ours, plain) / largest(plain);
  EXPECT_LE(error, 0.02) << what;
  fmt::print("{}: error {:.4f} of the largest value\n", what, error);
}

/// Backward of each backend of ours, twice: what a launch leaves behind must not show in the next.
void check_backward(Problem& start, const Problem& plain, const std::string& what) {
  for (const std::string& backend : Runner::backends(start)) {
    if (!backend.starts_with("cuda") || backend == "cuda-plain") continue;
    Runner ours(backend);
    for (const bool again : {false, true}) {
      Problem p = start;
      ours.backward(p);
      const std::string name = fmt::format("{} {}{}", what, backend, again ? " again" : "");
      expect_close(p.dq, plain.dq, name + " dq");
      expect_close(p.dk, plain.dk, name + " dk");
      expect_close(p.dv, plain.dv, name + " dv");
    }
  }
}

void check(Shape shape, std::vector<ops::Band> mask, const std::string& what) {
  std::mt19937_64 rng(17);
  Problem start(DType::bf16, shape, std::move(mask));
  start.randomise(rng);
  Problem plain = start;
  Runner("cuda-plain").both(plain);
  Runner ours("cuda");
  Problem first = start, second = start;
  ours.forward(first);
  ours.forward(second);
  expect_close(first.o, plain.o, what + " o");
  expect_close(first.lse, plain.lse, what + " lse");
  EXPECT_EQ(distance(first.o, second.o), 0) << what << ": the second run differs";
  ours.delta(first);
  check_backward(first, plain, what);
}

TEST(gpu_masks, documents_over_many_items) {
  check({tokens, tokens, 24, 24, 128, 128}, documents(), "documents");
}

TEST(gpu_masks, documents_over_many_items_of_grouped_heads) {
  check({tokens, tokens, 48, 24, 64, 64}, documents(), "documents, groups of 2");
}

TEST(gpu_masks, window_over_many_items) {
  check({tokens, tokens, 24, 24, 128, 128}, {{0, tokens, 0, tokens, -199, 0}}, "window");
}

/// Blocks of keys end at 300, in the middle of a diagonal.
TEST(gpu_masks, a_diagonal_across_the_end_of_a_block) {
  check({1100, 1000, 4, 4, 128, 128}, {{0, 900, 0, 900, 0, 0}, {1000, 1100, 300, 900, -open, open}},
        "diagonal");
}

TEST(gpu_masks, slices_over_many_items) {
  check({tokens, tokens, 24, 24, 128, 128}, perf::slices_of(tokens), "slices");
}

}  // namespace
}  // namespace tessera::testing
