// SPDX-License-Identifier: Apache-2.0
// Device and pinned buffers: same budget as host memory, zero-filled, copies in all directions.
#include <cstring>

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

TEST(gpu_memory, more_than_the_device_has_is_named) {
  Budget budget;
  try {
    const Buffer x(budget, std::int64_t{1} << 42, "four tebibytes", Space::cuda);
    FAIL() << "4 TiB were allocated";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("four tebibytes"), std::string::npos) << e.message();
    EXPECT_EQ(e.code(), Exit::environment);
  }
  EXPECT_EQ(budget.in_use(), 0);
}

}  // namespace
}  // namespace tessera::testing
