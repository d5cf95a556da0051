// SPDX-License-Identifier: Apache-2.0
// Device and pinned buffers: same budget as host memory, zero-filled, copies in all directions.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "base/error.hpp"
#include "validation/gpu/device.hpp"

namespace tessera::testing {
namespace {

TEST(gpu_memory, buffers_of_all_spaces_share_one_budget) {
  const std::int64_t page = memory::footprint(Space::cuda, 3000);
  Budget budget(page + 4000);
  {
    const Buffer host(budget, 1000, "a"), pinned(budget, 2000, "b", Space::pinned);
    const Buffer device(budget, 3000, "c", Space::cuda);
    EXPECT_EQ(budget.in_use(), page + 3000);
    EXPECT_EQ(device.space(), Space::cuda);
    EXPECT_EQ(pinned.space(), Space::pinned);
    EXPECT_THROW(Buffer(budget, 1 << 20, "too large", Space::cuda), Error);
    EXPECT_EQ(budget.in_use(), page + 3000);
  }
  EXPECT_EQ(budget.in_use(), 0);
  EXPECT_EQ(budget.peak(), page + 3000);
}

TEST(gpu_memory, device_memory_is_zero_and_copies_come_back) {
  Budget budget;
  const Tensor device = make_tensor(budget, DType::f32, {100, 3, 7}, "device", Space::cuda);
  const Buffer pinned(budget, device.buffer.bytes(), "pinned", Space::pinned);
  std::vector<float> host(2100, 1.f);
  EXPECT_EQ(device.ref.space, Space::cuda);
  memory::copy(pinned.data(), device.buffer.data(), pinned.bytes());
  memory::synchronize();
  EXPECT_TRUE(std::all_of(static_cast<float*>(pinned.data()),
                          static_cast<float*>(pinned.data()) + 2100,
                          [](float x) { return x == 0; }));
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i);
  memory::copy(device.buffer.data(), host.data(), pinned.bytes());
  memory::copy(pinned.data(), device.buffer.data(), pinned.bytes());
  memory::synchronize();
  EXPECT_EQ(std::memcmp(pinned.data(), host.data(), 2100 * sizeof(float)), 0);
}

TEST(gpu_memory, what_is_given_back_serves_the_next_of_its_size) {
  constexpr std::int64_t page = std::int64_t{2} << 20, size = 6 * page;
  for (const Space space : {Space::cuda, Space::pinned}) {
    Budget budget;
    void* before = nullptr;
    {
      const Buffer first(budget, size, "first", space), other(budget, page, "other", space);
      before = first.data();
      std::vector<char> ones(static_cast<std::size_t>(size), 1);
      memory::copy(first.data(), ones.data(), size);
      memory::synchronize();
    }
    EXPECT_EQ(budget.in_use(), 0);
    EXPECT_EQ(budget.kept(), size + page);
    const Buffer again(budget, size - 1000 * (space == Space::cuda), "again", space);
    EXPECT_EQ(again.data(), before);
    EXPECT_EQ(budget.kept(), page);
    std::vector<char> host(static_cast<std::size_t>(again.bytes()), 1);
    memory::copy(host.data(), again.data(), again.bytes());
    memory::synchronize();
    EXPECT_TRUE(std::ranges::all_of(host, [](char c) { return c == 0; })) << "not zeroed";
  }
}

/// The device cannot be waited for while an exception is under way; what it was may be caught.
TEST(gpu_memory, what_an_exception_gives_back_is_not_lost) {
  constexpr std::int64_t size = std::int64_t{8} << 20;
  Budget budget;
  void* before = nullptr;
  try {
    const Buffer buffer(budget, size, "buffer", Space::cuda);
    before = buffer.data();
    throw std::runtime_error("a backend that failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(budget.in_use(), 0);
  EXPECT_EQ(budget.kept(), size);
  const Buffer again(budget, size, "again", Space::cuda);
  EXPECT_EQ(again.data(), before);
  const Buffer other(budget, size, "other", Space::cuda);
  budget.free_kept();
  EXPECT_EQ(budget.kept(), 0);
}

/// Blocks that are kept must not stand in the way of a limit.
TEST(gpu_memory, kept_and_used_never_pass_what_was_used_at_one_time) {
  constexpr std::int64_t page = std::int64_t{2} << 20;
  std::mt19937_64 rng(7);
  const auto draw = [&](int a, int b) { return std::uniform_int_distribution(a, b)(rng); };
  Budget budget(64 * page);
  std::vector<Buffer> live;
  std::int64_t most = 0;
  int reused = 0, refused = 0;
  for (int step = 0; step < 600; ++step) {
    if (!live.empty() && draw(0, 2) == 0) live.erase(live.begin() + draw(0, std::ssize(live) - 1));
    const std::int64_t kept = budget.kept(), size = draw(1, 20) * page;
    try {
      live.emplace_back(budget, size, "block", Space::cuda);
      reused += kept - budget.kept() == size;
    } catch (const Error&) {
      ++refused;  // by the limit
      live.clear();
    }
    most = std::max(most, budget.in_use());
    ASSERT_LE(budget.in_use() + budget.kept(), most) << "step " << step;
    ASSERT_LE(most, budget.limit());
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(reused, 0);
  fmt::print("600 steps: {} with kept blocks at hand, {} refused by the limit\n", reused, refused);
}

TEST(gpu_memory, more_than_the_device_has_is_named) {
  Budget budget;
  { const Buffer kept(budget, 1000, "kept", Space::cuda); }
  const std::int64_t peak = budget.peak();
  try {
    const Buffer x(budget, std::int64_t{1} << 42, "four tebibytes", Space::cuda);
    FAIL() << "4 TiB were allocated";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("four tebibytes"), std::string::npos) << e.message();
    EXPECT_EQ(e.code(), Exit::environment);
  }
  EXPECT_EQ(budget.in_use(), 0);
  EXPECT_EQ(budget.kept(), 0) << "kept blocks stood in the way";
  EXPECT_EQ(budget.peak(), peak) << "what was not had counts";
}

}  // namespace
}  // namespace tessera::testing
