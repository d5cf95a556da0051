// SPDX-License-Identifier: Apache-2.0
// The NCCL transport on a machine without a GPU, over a library that only looks like NCCL: order,
// counts, communicators, errors, time-outs. Real messages between GPUs: validation/gpu.
#include <chrono>
#include <numeric>

#include "parallel/nccl.hpp"
#include "validation/mpi/fake_nccl.hpp"

namespace tessera::parallel {
namespace {

using Kind = Message::Kind;
using test::fake;
using test::world;

class nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    fake = {};
    settings_.patience_s = 0.2;
    settings_.farewell_s = 0.2;
    settings_.open_ways = false;  // that needs a device
  }
  std::unique_ptr<Transport> make() { return make_nccl(comm_, api_, settings_); }
  int next() const { return (comm_.rank() + 1) % comm_.size(); }
  int before() const { return (comm_.rank() + comm_.size() - 1) % comm_.size(); }
  /// A unit that sends `out` to the next rank and fills `in` from the one before.
  MessageUnit shift(int queue, std::vector<float>& out, std::vector<float>& in, int tag = 0) const {
    const auto n = static_cast<std::int64_t>(out.size());
    return {queue,
            {{Kind::send, out.data(), n, DType::f32, next(), tag, queue},
             {Kind::recv, in.data(), n, DType::f32, before(), tag, queue}}};
  }
  /// The code of what `body` throws; the text goes to `text_`.
  Exit failure(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& e) {
      text_ = e.message() + " | " + e.hint();
      return e.code();
    }
    return Exit::ok;
  }
  bool says(const std::string& part) const { return text_.find(part) != std::string::npos; }

  Communicator comm_{world().handle(), "nccl"};
  NcclApi api_ = test::fake_api();
  NcclSettings settings_;
  Budget budget_;
  std::string text_;
};

TEST_F(nccl, messages_match_by_tag_whatever_their_order_in_the_lists) {
  const int n = comm_.size(), r = comm_.rank(), tags = 3;
  std::vector<int> out(n * tags), in(n * tags, -1);
  MessageUnit unit{0, {}};
  for (int t = 0; t < tags; ++t) {
    for (int p = 0; p < n; ++p) {
      out[p * tags + t] = r * 10000 + p * 100 + t;
      const int tag = t == 2 ? 1 : t;  // two messages with one tag keep their order
      unit.messages.push_back({Kind::send, &out[p * tags + t], 1, DType::f32, p, tag, 1});
      unit.messages.push_back({Kind::recv, &in[p * tags + t], 1, DType::f32, p, tag, 1});
    }
  }
  // Odd ranks list tag 1 before tag 0.
  const auto odd = static_cast<std::ptrdiff_t>(r % 2 * 2 * n);
  std::rotate(unit.messages.begin(), unit.messages.begin() + odd, unit.messages.end());
  const auto transport = make();
  transport->open({unit}, budget_)->start(0, nullptr);
  for (int p = 0; p < n; ++p) {
    for (int t = 0; t < tags; ++t) EXPECT_EQ(in[p * tags + t], p * 10000 + r * 100 + t);
  }
  EXPECT_EQ(comm_.bytes_sent(1), 4 * tags * (n - 1)) << "what stays here does not count";
}

TEST_F(nccl, OB_101_large_units_go_in_groups_that_both_sides_cut_alike) {
  const int n = comm_.size(), r = comm_.rank(), pieces = 200;
  std::vector<int> out(n * pieces), in(n * pieces, -1);
  MessageUnit unit{0, {}};
  for (int p = 0; p < n; ++p) {
    // Few to the next rank: the groups of a pair must not depend on what others are sent.
    const auto number = [&](int from, int to) { return to == (from + 1) % n ? 3 : pieces; };
    for (int i = 0; i < number(r, p); ++i) {
      out[p * pieces + i] = r * 100000 + p * 1000 + i;
      unit.messages.push_back({Kind::send, &out[p * pieces + i], 1, DType::f32, p, i, 0});
    }
    for (int i = 0; i < number(p, r); ++i)
      unit.messages.push_back({Kind::recv, &in[p * pieces + i], 1, DType::f32, p, i, 0});
  }
  const auto transport = make();
  transport->open({unit}, budget_)->start(0, nullptr);
  EXPECT_LE(fake.largest, 256u);
  if (n > 1) EXPECT_GT(fake.groups, 1);
  for (int p = 0; p < n; ++p) {
    const int number = r == (p + 1) % n ? 3 : pieces;
    for (int i = 0; i < pieces; ++i)
      EXPECT_EQ(in[p * pieces + i], i < number ? p * 100000 + r * 1000 + i : -1);
  }
}

TEST_F(nccl, empty_messages_are_left_out_on_both_sides) {
  std::vector<float> out{1, 2}, in(2);
  MessageUnit unit = shift(0, out, in);
  unit.messages.push_back({Kind::send, nullptr, 0, DType::f32, next(), 7, 0});
  unit.messages.push_back({Kind::recv, nullptr, 0, DType::f32, before(), 7, 0});
  MessageUnit empty{1, {{Kind::send, nullptr, 0, DType::f32, next(), 8, 0}}};
  const auto transport = make();
  const auto route = transport->open({unit, empty}, budget_);
  route->start(0, nullptr);
  route->start(1, nullptr);
  EXPECT_EQ(fake.calls, 2);
  EXPECT_EQ(fake.groups, 1) << "nothing to do is no group";
  EXPECT_EQ(fake.created, 1) << "a queue without a message needs no communicator";
  EXPECT_EQ(in, out);
}

TEST_F(nccl, sums_are_counted_once_and_not_on_one_rank) {
  const int n = comm_.size();
  std::vector<float> x{1, 2, 3};
  std::vector<double> y{0.5};
  const auto transport = make();
  const auto route = transport->open({{0,
                                       {{Kind::all_reduce, x.data(), 3, DType::f32, -1, 0, 2},
                                        {Kind::all_reduce, y.data(), 1, DType::f64, -1, 0, 2}}}},
                                     budget_);
  route->start(0, nullptr);
  EXPECT_EQ(x, (std::vector<float>{1.f * n, 2.f * n, 3.f * n}));
  EXPECT_EQ(y[0], 0.5 * n);
  EXPECT_EQ(comm_.bytes_sent(2), n > 1 ? 20 : 0);
}

TEST_F(nccl, a_queue_has_one_communicator_for_all_routes) {
  settings_.channels = 4;
  std::vector<float> out{1}, in(1);
  {
    const auto transport = make();
    const auto first = transport->open({shift(0, out, in), shift(2, out, in)}, budget_);
    const auto second = transport->open({shift(2, out, in), shift(3, out, in)}, budget_);
    EXPECT_EQ(fake.created, 3);
    EXPECT_EQ(fake.channels, std::vector<int>(3, 4));
    first->start(1, nullptr);
    second->start(0, nullptr);
  }
  EXPECT_EQ(fake.finalized, 3);
  EXPECT_EQ(fake.destroyed, 3);
  EXPECT_EQ(fake.aborted, 0);
}

TEST_F(nccl, a_queue_that_only_some_ranks_use_is_opened_by_all) {
  std::vector<float> out{1}, in(1);
  std::vector<MessageUnit> units;
  if (comm_.rank() == 0) {
    units.push_back({5,
                     {{Kind::send, out.data(), 1, DType::f32, 0, 0, 0},
                      {Kind::recv, in.data(), 1, DType::f32, 0, 0, 0}}});
  }
  const auto transport = make();
  const auto route = transport->open(units, budget_);
  EXPECT_EQ(fake.created, 1);
  route->progress();
}

TEST_F(nccl, what_both_sides_do_not_say_alike_is_refused_before_it_hangs) {
  if (comm_.size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<float> out{1, 2, 3}, in(3);
  MessageUnit unit = shift(0, out, in);
  if (comm_.rank() == 1) unit.messages[1].count = 2;  // expects less than rank 0 sends
  const auto transport = make();
  EXPECT_EQ(failure([&] { transport->open({unit}, budget_); }), Exit::communication);
  EXPECT_TRUE(says("rank 0 sends to rank 1")) << text_;
  EXPECT_TRUE(says("comm queue 0")) << text_;
  // The order of units counts as well.
  std::vector<MessageUnit> units{shift(0, out, in, 1), shift(0, out, in, 2)};
  if (comm_.rank() == 1) std::swap(units[0], units[1]);
  EXPECT_EQ(failure([&] { transport->open(units, budget_); }), Exit::communication);
}

TEST_F(nccl, an_error_while_messages_move_names_rank_and_queue_and_aborts) {
  std::vector<float> out{1}, in(1);
  const auto transport = make();
  const auto route = transport->open({shift(0, out, in), shift(3, out, in)}, budget_);
  route->start(0, nullptr);
  route->progress();
  fake.state = ncclRemoteError;
  EXPECT_EQ(failure([&] {
              while (true) route->progress();
            }),
            Exit::communication);
  EXPECT_TRUE(says("rank " + std::to_string(comm_.rank()) + " of")) << text_;
  EXPECT_TRUE(says("comm queue 0")) << text_;
  EXPECT_TRUE(says("ncclRemoteError (the cable is out)")) << text_;
  EXPECT_TRUE(says("NCCL_DEBUG")) << text_;
  EXPECT_EQ(fake.aborted, 2);
}

TEST_F(nccl, ranks_that_never_come_end_in_a_time_out) {
  std::vector<float> out{1}, in(1);
  const auto transport = make();
  fake.answers = false;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(failure([&] { transport->open({shift(0, out, in)}, budget_); }), Exit::communication);
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(waited.count(), 0.2);
  EXPECT_TRUE(says("ncclCommInitRankConfig: no answer from the other ranks for 0.2 s")) << text_;
  EXPECT_EQ(fake.aborted, 1);
}

TEST_F(nccl, nobody_waits_at_the_end_for_a_rank_that_is_gone) {
  std::vector<float> out{1}, in(1);
  {
    const auto transport = make();
    const auto route = transport->open({shift(0, out, in)}, budget_);
    fake.answers = false;
  }
  EXPECT_EQ(fake.aborted, 1) << "after the farewell";
  fake.answers = true;
  EXPECT_EQ(failure([&] {
              const auto transport = make();
              const auto route = transport->open({shift(0, out, in)}, budget_);
              throw Error(Exit::numerical, "NaN");
            }),
            Exit::numerical);
  EXPECT_EQ(fake.aborted, 2) << "at once";
  EXPECT_EQ(fake.finalized, 1);
}

TEST_F(nccl, ranks_with_different_libraries_are_refused) {
  if (comm_.size() == 1) GTEST_SKIP() << "needs two ranks";
  if (comm_.rank() == 1) fake.version = 21803;
  EXPECT_EQ(failure([&] { make(); }), Exit::environment);
  EXPECT_TRUE(says("rank 0 has NCCL 2.28.9, rank 1 has NCCL 2.18.3")) << text_;
}

TEST_F(nccl, channels_out_of_range_are_named) {
  settings_.channels = 65;
  EXPECT_EQ(failure([&] { make(); }), Exit::usage);
  EXPECT_TRUE(says("parallel.nccl_channels = 65")) << text_;
}

TEST(nccl_library, is_described_by_its_version_or_its_absence) {
  EXPECT_EQ(nccl_version_text(22809), "2.28.9");
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(name_of(ncclInvalidUsage), "ncclInvalidUsage");
  EXPECT_EQ(name_of(static_cast<ncclResult_t>(77)), "NCCL result 77");
  const std::string text = describe_nccl();
  EXPECT_TRUE(text.starts_with("2.") || text.starts_with("none: ")) << text;
}

}  // namespace
}  // namespace tessera::parallel
