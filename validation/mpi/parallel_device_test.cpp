// SPDX-License-Identifier: Apache-2.0
// Which rank gets which GPU: every arrangement of schedulers as a list of hosts and uuids, and the
// real choice on this machine, whatever it has.
#include <algorithm>

#include "memory/cuda.hpp"
#include "parallel/device_users.hpp"
#include "validation/mpi/test_main.hpp"

namespace tessera::parallel {
namespace {

using test::world;
using Users = std::vector<DeviceUser>;

/// The error of `body`, or a failed test.
Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return Error(Exit::ok, "none");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(device, one_rank_per_device_is_fine) {
  const Users users{{"a", "GPU-1"}, {"a", "GPU-2"}, {"b", "GPU-3"}, {"b", "GPU-4"}};
  for (int r = 0; r < 4; ++r) {
    const Device d = count_users(users, r, false);
    EXPECT_EQ(d.uuid, users[r].uuid);
    EXPECT_EQ(d.ranks_on_device, 1);
    EXPECT_EQ(d.num_devices, 4);
    EXPECT_FALSE(d.shared);
  }
}

TEST(device, two_ranks_on_one_device_are_refused_by_name) {
  const Users users{{"a", "GPU-1"}, {"a", "GPU-2"}, {"b", "GPU-7"}, {"b", "GPU-7"}};
  for (int r = 0; r < 4; ++r) {
    const Error e = error_of([&] { count_users(users, r, false); });
    EXPECT_EQ(e.code(), Exit::environment);
    EXPECT_TRUE(has(e.message(), "ranks 2, 3")) << e.message();
    EXPECT_TRUE(has(e.message(), "GPU-7 of host b")) << e.message();
    EXPECT_TRUE(has(e.hint(), "parallel.share_device = true")) << e.hint();
  }
}

TEST(device, sharing_is_counted_where_it_is_asked_for) {
  const Users users{{"a", "GPU-1"}, {"a", "GPU-2"}, {"a", "GPU-1"}, {"a", "GPU-1"}};
  const std::vector<int> expected{3, 1, 3, 3};
  for (int r = 0; r < 4; ++r) {
    const Device d = count_users(users, r, true);
    EXPECT_EQ(d.ranks_on_device, expected[r]);
    EXPECT_EQ(d.num_devices, 2);
    EXPECT_TRUE(d.shared) << "all ranks know, also the one that is alone";
  }
}

TEST(device, equal_uuids_on_two_hosts_are_two_devices) {
  const Users users{{"a", "GPU-0"}, {"b", "GPU-0"}};
  const Device d = count_users(users, 1, false);
  EXPECT_EQ(d.num_devices, 2);
  EXPECT_FALSE(d.shared);
}

TEST(device, many_ranks_on_one_device_are_not_all_listed) {
  const Users users(300, {"a", "GPU-1"});
  const Error e = error_of([&] { count_users(users, 0, false); });
  EXPECT_TRUE(has(e.message(), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 292 more")) << e.message();
}

TEST(device, hosts_without_a_device_are_named_once) {
  const Users users{{"a", "GPU-1"}, {"b", ""}, {"b", ""}, {"c", "GPU-2"}, {"d", ""}};
  const Error e = error_of([&] { require_devices(users, "no driver"); });
  EXPECT_EQ(e.code(), Exit::environment);
  EXPECT_TRUE(has(e.message(), "no driver on hosts b, d")) << e.message();
  EXPECT_TRUE(has(e.hint(), "parallel.device = \"host\"")) << e.hint();
  EXPECT_NO_THROW(require_devices(Users{{"a", "GPU-1"}, {"b", "GPU-2"}}, "no driver"));
}

TEST(device, the_choice_on_this_machine_is_the_same_for_all_ranks) {
  const Placement here = find_placement(world());
  const std::int64_t visible = memory::device_count();
  if (world().all_reduce_min(visible) == 0) {
    const Error e = error_of([&] { choose_device(world(), here, true); });
    EXPECT_EQ(e.code(), Exit::environment);
    EXPECT_TRUE(has(e.message(), "parallel.device = \"cuda\"")) << e.message();
    EXPECT_TRUE(has(e.hint(), "parallel.device = \"host\"")) << e.hint();
    world().barrier();  // nobody was left behind in the choice
    return;
  }
  const Device d = choose_device(world(), here, true);
  EXPECT_EQ(d.number, here.rank_on_host % visible);
  EXPECT_FALSE(d.text.empty());
  const std::int64_t sharing = world().all_reduce_max(std::int64_t{d.ranks_on_device});
  EXPECT_EQ(d.shared, sharing > 1);
  EXPECT_LE(d.num_devices, world().size());
  if (!d.shared) return;
  const Error e = error_of([&] { choose_device(world(), here, false); });
  EXPECT_TRUE(has(e.message(), "compute on one GPU")) << e.message();
}

}  // namespace
}  // namespace tessera::parallel
