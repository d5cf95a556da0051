// SPDX-License-Identifier: Apache-2.0
// The NCCL transport on a machine without a GPU, over a library that only looks like NCCL: order,
// counts, communicators, errors, time-outs. Real messages between GPUs: validation/gpu.
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

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

TEST_F(nccl, OB_031_communicators_are_made_in_one_order_whatever_the_order_of_use) {
  std::vector<float> a{1}, b{2}, from_a(1), from_b(1);
  a[0] += static_cast<float>(comm_.rank()), b[0] += static_cast<float>(comm_.rank() * 100);
  std::vector<MessageUnit> units{shift(4, a, from_a), shift(1, b, from_b)};
  if (comm_.rank() % 2 == 1) std::swap(units[0], units[1]);
  const auto transport = make();
  const auto route = transport->open(units, budget_);
  EXPECT_EQ(fake.created, 2) << "before the first unit starts";
  // The fake's communicators match by the number of their creation. In one order on all ranks:
  const std::size_t first = comm_.rank() % 2 == 1 ? 1 : 0;
  route->start(first, nullptr);
  route->start(1 - first, nullptr);
  EXPECT_EQ(fake.created, 2);
  EXPECT_EQ(from_a[0], 1 + before());
  EXPECT_EQ(from_b[0], 2 + 100 * before());
}

TEST_F(nccl, OB_099_counts_that_differ_are_named_and_empty_ones_touch_nothing) {
  const int n = comm_.size(), r = comm_.rank();
  if (n < 4) GTEST_SKIP() << "needs four ranks";
  // Valid: rank 2 sends nothing to anybody and nobody sends to rank 2; else from + to + 1 elements.
  const auto number = [](int from, int to) { return from == 2 || to == 2 ? 0 : from + to + 1; };
  const auto unit_of = [&](std::vector<std::vector<float>>& out,
                           std::vector<std::vector<float>>& in, auto sent, auto expected) {
    MessageUnit unit{0, {}};
    for (int p = 0; p < n; ++p) {
      out.emplace_back(20, 100.f * static_cast<float>(r) + static_cast<float>(p));
      in.emplace_back(20, -1.f);
      unit.messages.push_back({Kind::send, out[p].data(), sent(r, p), DType::f32, p, 0, 0});
      unit.messages.push_back({Kind::recv, in[p].data(), expected(p, r), DType::f32, p, 0, 0});
    }
    return unit;
  };
  std::vector<std::vector<float>> out, in;
  const auto transport = make();
  transport->open({unit_of(out, in, number, number)}, budget_)->start(0, nullptr);
  for (int p = 0; p < n; ++p) {
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(in[p][i], i < number(p, r) ? 100.f * p + r : -1.f) << "from " << p << ", " << i;
  }
  EXPECT_EQ(fake.calls, r == 2 ? 0 : 2 * (n - 1));
  // Rank 1 says 0 to rank 3, which expects 4.
  std::vector<std::vector<float>> out2, in2;
  const auto sent = [&](int a, int b) { return a == 1 && b == 3 ? 0 : number(a, b); };
  const auto expected = [&](int a, int b) { return a == 1 && b == 3 ? 4 : number(a, b); };
  EXPECT_EQ(failure([&] { transport->open({unit_of(out2, in2, sent, expected)}, budget_); }),
            Exit::communication);
  EXPECT_TRUE(says("rank 1 sends to rank 3")) << text_;
}

TEST_F(nccl, OB_100_lists_need_not_be_alike_on_the_two_sides) {
  // Everybody sends to rank 0 and to the next rank: rank 0 has most to receive. Each list is one
  // group; what a rank sends is never put in another group than what it receives.
  const int n = comm_.size(), r = comm_.rank();
  std::vector<int> in(n, -1), out(2, 7 + r);
  int from_before = -1;
  MessageUnit unit{0, {}};
  unit.messages.push_back({Kind::send, &out[0], 1, DType::f32, 0, 5, 0});
  unit.messages.push_back({Kind::send, &out[1], 1, DType::f32, next(), 6, 0});
  unit.messages.push_back({Kind::recv, &from_before, 1, DType::f32, before(), 6, 0});
  for (int p = 0; r == 0 && p < n; ++p)
    unit.messages.push_back({Kind::recv, &in[p], 1, DType::f32, p, 5, 0});
  const auto transport = make();
  transport->open({unit}, budget_)->start(0, nullptr);
  EXPECT_EQ(fake.groups, 1);
  EXPECT_EQ(from_before, 7 + before());
  for (int p = 0; r == 0 && p < n; ++p) EXPECT_EQ(in[p], 7 + p);
}

TEST_F(nccl, OB_103_counts_beyond_2_GiB_reach_the_library_whole) {
  static std::vector<std::size_t> counts;
  counts.clear();
  api_.send = [](const void*, std::size_t n, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return counts.push_back(n), ncclSuccess;
  };
  api_.recv = [](void*, std::size_t n, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return counts.push_back(n), ncclSuccess;
  };
  const std::int64_t elements = 1'500'000'000;  // 3.0e9 bytes; no memory is touched
  float none = 0;
  const MessageUnit unit{0,
                         {{Kind::send, &none, elements, DType::bf16, next(), 0, 0},
                          {Kind::recv, &none, elements, DType::bf16, before(), 0, 0}}};
  const auto transport = make();
  transport->open({unit}, budget_)->start(0, nullptr);
  EXPECT_EQ(counts, std::vector<std::size_t>(2, 3'000'000'000));
  EXPECT_EQ(comm_.bytes_sent(0), comm_.size() > 1 ? 3'000'000'000 : 0);
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
  EXPECT_GE(fake.groups, n > 1 ? 2 : 1);
  for (int p = 0; p < n; ++p) {
    const int number = r == (p + 1) % n ? 3 : pieces;
    for (int i = 0; i < pieces; ++i)
      EXPECT_EQ(in[p * pieces + i], i < number ? p * 100000 + r * 1000 + i : -1);
  }
}

TEST_F(nccl, OB_102_two_communicators_in_use_at_once_keep_one_order) {
  // The fake runs each group to its end where it is started: another order on some rank would hang.
  const int n = comm_.size(), r = comm_.rank();
  std::vector<int> out(n), in(n);
  std::vector<float> sum(1);
  MessageUnit all_to_all{1, {}};
  for (int p = 0; p < n; ++p) {
    all_to_all.messages.push_back({Kind::send, &out[p], 1, DType::f32, p, 0, 1});
    all_to_all.messages.push_back({Kind::recv, &in[p], 1, DType::f32, p, 0, 1});
  }
  const MessageUnit reduction{0, {{Kind::all_reduce, sum.data(), 1, DType::f32, -1, 0, 0}}};
  const auto transport = make();
  const auto route = transport->open({reduction, all_to_all}, budget_);
  EXPECT_EQ(fake.created, 2);
  std::mt19937 random(static_cast<unsigned>(r));
  const auto delay = [&] {
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
  };
  int wrong = 0;
  for (int round = 0; round < 1000; ++round) {
    sum[0] = static_cast<float>(r + round);
    for (int p = 0; p < n; ++p) out[p] = round * 10000 + r * 100 + p;
    delay();
    route->start(0, nullptr);
    delay();
    route->start(1, nullptr);
    wrong += sum[0] != static_cast<float>(n * round + n * (n - 1) / 2);
    for (int p = 0; p < n; ++p) wrong += in[p] != round * 10000 + p * 100 + r;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(fake.groups, 2000);
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
