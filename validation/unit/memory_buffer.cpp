// SPDX-License-Identifier: Apache-2.0
#include "memory/buffer.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/error.hpp"

/// Under the address sanitizer a size that cannot be had ends the process unless told otherwise.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace tessera {
namespace {

TEST(memory, buffer_zero_filled_aligned_counted) {
  Budget budget;
  {
    const Buffer b(budget, 1000, "x");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 64, 0u);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(static_cast<char*>(b.data())[i], 0);
    EXPECT_EQ(budget.in_use(), 1000);
  }
  EXPECT_EQ(budget.in_use(), 0);
  EXPECT_EQ(budget.peak(), 1000);
  budget.reset_peak();
  EXPECT_EQ(budget.peak(), 0);
}

TEST(memory, buffer_move_keeps_count_exact) {
  Budget budget;
  Buffer a(budget, 100, "a"), b(budget, 10, "b");
  b = std::move(a);
  EXPECT_EQ(budget.in_use(), 100);
  EXPECT_EQ(b.bytes(), 100);
  Buffer c(std::move(b));
  EXPECT_EQ(budget.in_use(), 100);
  EXPECT_EQ(b.bytes(), 0);  // NOLINT: the moved-from state is part of the contract
  c = Buffer();
  EXPECT_EQ(budget.in_use(), 0);
}

TEST(memory, budget_limit_names_label_and_sizes) {
  Budget budget(1 << 20);
  const Buffer first(budget, 1 << 19, "first");
  try {
    const Buffer second(budget, (1 << 19) + 1, "kv ring");
    FAIL() << "the limit was passed";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::environment);
    for (const char* part : {"kv ring", "512.00 KiB", "1.00 MiB"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
  EXPECT_EQ(budget.in_use(), 1 << 19);
  const Buffer exact(budget, 1 << 19, "exact");
  EXPECT_EQ(budget.in_use(), budget.limit());
}

TEST(memory, buffer_impossible_size_is_an_error_and_not_counted) {
  Budget budget;
  EXPECT_THROW(Buffer(budget, std::int64_t{1} << 62, "huge"), Error);
  EXPECT_EQ(budget.in_use(), 0);
  EXPECT_THROW(Buffer(budget, -1, "negative"), std::logic_error);
}

/// Blocks of host memory here, which the budget itself does not keep.
TEST(memory, pool_gives_blocks_of_just_the_size_latest_first) {
  memory::Pool pool;
  const auto keep = [&](std::int64_t bytes) {
    memory::Block block(std::malloc(static_cast<std::size_t>(bytes)));
    void* data = block.get();
    pool.keep(std::move(block), bytes);
    return data;
  };
  void* first = keep(100);
  void* second = keep(100);
  keep(300);
  EXPECT_EQ(pool.bytes(), 500);
  EXPECT_FALSE(pool.take(99));
  const memory::Block a = pool.take(100), b = pool.take(100);
  EXPECT_EQ(a.get(), second);
  EXPECT_EQ(b.get(), first);
  EXPECT_FALSE(pool.take(100));
  EXPECT_EQ(pool.bytes(), 300);
}

TEST(memory, pool_shrinks_from_the_oldest) {
  std::mt19937_64 rng(1);
  int taken = 0;
  for (int round = 0; round < 200; ++round) {
    memory::Pool pool;
    std::vector<std::int64_t> sizes;  // all different, in the order of their age
    std::int64_t total = 0;
    for (int i = 0; i < 1 + round % 12; ++i) {
      sizes.push_back(1000 * (i + 1) + std::uniform_int_distribution(0, 999)(rng));
      total += sizes.back();
      pool.keep(memory::Block(std::malloc(1)), sizes.back());
    }
    ASSERT_EQ(pool.bytes(), total);
    const std::int64_t limit = std::uniform_int_distribution<std::int64_t>(0, total)(rng);
    pool.shrink(limit);
    std::size_t gone = 0;
    for (; total > limit; ++gone) total -= sizes[gone];
    ASSERT_EQ(pool.bytes(), total) << "limit " << limit;
    for (std::size_t i = 0; i < sizes.size(); ++i, ++taken)
      ASSERT_EQ(static_cast<bool>(pool.take(sizes[i])), i >= gone);
    ASSERT_EQ(pool.bytes(), 0);
  }
  std::printf("200 pools, %d blocks asked for\n", taken);
}

TEST(memory, tensor_shape_overflow_is_an_error) {
  Budget budget;
  EXPECT_THROW(make_tensor(budget, DType::f64, {std::int64_t{1} << 40, 1 << 20, 8}, "t"), Error);
  EXPECT_EQ(budget.in_use(), 0);
  const Tensor empty = make_tensor(budget, DType::f32, {0, 4, 8}, "empty");
  EXPECT_EQ(empty.ref.count(), 0);
}

TEST(memory, tensor_slice_strides_offsets) {
  Budget budget;
  const Tensor t = make_tensor(budget, DType::f32, {6, 4, 8}, "t");
  for (int i = 0; i < 6 * 4 * 8; ++i) t.ref.as<float>()[i] = static_cast<float>(i);
  const TensorRef s = t.ref.slice({2, 5}, {1, 3});
  EXPECT_EQ(s.shape, (std::array<std::int64_t, 3>{3, 2, 8}));
  EXPECT_EQ(s.at<float>(0, 0, 0), 2 * 32 + 8);
  EXPECT_EQ(s.at<float>(2, 1, 7), 4 * 32 + 2 * 8 + 7);
  EXPECT_TRUE(t.ref.contiguous());
  EXPECT_FALSE(s.contiguous());
  EXPECT_TRUE(t.ref.slice({2, 5}, {0, 4}).contiguous());
}

}  // namespace
}  // namespace tessera
