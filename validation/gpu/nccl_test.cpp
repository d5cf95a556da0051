// SPDX-License-Identifier: Apache-2.0
// Real messages between device buffers, by every transport that works with the devices of this job:
// contents, order, counts, sums, and the same once captured in a graph. Any number of ranks and
// devices; without a device it exits with 77 (skipped).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "memory/cuda.hpp"
#include "memory/stream.hpp"
#include "parallel/device.hpp"
#include "parallel/transport.hpp"
#include "validation/mpi/rank_report.hpp"

namespace tessera::parallel {
namespace {

using Kind = Message::Kind;

Communicator* world = nullptr;
Device device;

/// Device memory with a copy on the host.
class Array {
 public:
  Array(Budget& budget, std::int64_t count)
      : host_(static_cast<std::size_t>(count), -1.f),
        buffer_(budget, std::max<std::int64_t>(4 * count, 4), "test", Space::cuda) {}
  void fill(int from, int to, int round) {
    for (std::size_t i = 0; i < host_.size(); ++i) host_[i] = value(from, to, round, i);
    memory::copy(buffer_.data(), host_.data(), bytes());
    memory::synchronize();
  }
  /// Elements that are not what fill(from, to, round) wrote.
  std::int64_t wrong(int from, int to, int round) {
    memory::copy(host_.data(), buffer_.data(), bytes());
    memory::synchronize();
    std::int64_t count = 0;
    for (std::size_t i = 0; i < host_.size(); ++i) count += host_[i] != value(from, to, round, i);
    return count;
  }
  Message message(Kind kind, int peer, std::int64_t tag, int axis = 0) const {
    return {kind, buffer_.data(), static_cast<std::int64_t>(host_.size()), DType::f32, peer, tag,
            axis};
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>(4 * host_.size()); }

 private:
  static float value(int from, int to, int round, std::size_t i) {
    return static_cast<float>((i * 7 + static_cast<std::size_t>(from * 1009 + to * 31 + round)) %
                              65521);
  }
  std::vector<float> host_;
  Buffer buffer_;
};

class transport : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    if (name == "nccl" && device.shared) GTEST_SKIP() << "ranks share a GPU";
    comm_.reset_counters();
    try {
      transport_ = make_transport(comm_, {.name = name, .shared_device = device.shared});
    } catch (const Error& e) {
      GTEST_SKIP() << e.message();
    }
  }
  /// Puts units 0 .. n-1 on the stream and waits as the executor does.
  void run(Route& route, std::size_t n) {
    for (std::size_t u = 0; u < n; ++u) route.start(u, stream_.handle());
    finish(route);
  }
  void finish(Route& route) {
    const memory::Event end;
    end.record(stream_.handle());
    while (!end.done()) route.progress();
  }

  Communicator comm_{world->handle(), "transport"};
  const int n_ = comm_.size(), r_ = comm_.rank();
  const int next_ = (r_ + 1) % n_, before_ = (r_ + n_ - 1) % n_;
  Budget budget_;
  memory::Stream stream_{memory::Stream::Priority::high};
  std::unique_ptr<Transport> transport_;
};

TEST_P(transport, shifts_of_all_sizes_arrive_and_are_counted) {
  for (const std::int64_t count : {0, 1, 1023, 65537, 3000001}) {
    Array out(budget_, count), in(budget_, count);
    const auto route = transport_->open(
        {{0, {out.message(Kind::send, next_, 3, 1), in.message(Kind::recv, before_, 3, 1)}}},
        budget_);
    comm_.reset_counters();
    for (int round = 0; round < 3; ++round) {
      out.fill(r_, next_, round);
      run(*route, 1);
      EXPECT_EQ(in.wrong(before_, r_, round), 0) << count << " elements, round " << round;
    }
    EXPECT_EQ(comm_.bytes_sent(1), n_ > 1 ? 3 * out.bytes() : 0);
  }
}

TEST_P(transport, all_to_all_in_one_unit_matches_by_tag) {
  std::vector<std::unique_ptr<Array>> out, in;
  MessageUnit unit;
  for (int p = 0; p < n_; ++p) {
    for (int t = 0; t < 2; ++t) {
      out.push_back(std::make_unique<Array>(budget_, 1000 + 10 * (r_ + p) + t));
      in.push_back(std::make_unique<Array>(budget_, 1000 + 10 * (r_ + p) + t));
      out.back()->fill(r_, p, t);
      unit.messages.push_back(out.back()->message(Kind::send, p, t));
      unit.messages.push_back(in.back()->message(Kind::recv, p, t));
    }
  }
  if (r_ % 2 == 1) std::reverse(unit.messages.begin(), unit.messages.end());
  const auto route = transport_->open({unit}, budget_);
  run(*route, 1);
  for (int p = 0; p < n_; ++p) {
    for (int t = 0; t < 2; ++t) EXPECT_EQ(in[2 * p + t]->wrong(p, r_, t), 0) << p << " " << t;
  }
}

TEST_P(transport, a_chain_of_units_keeps_its_order) {
  // Each rank passes on what it got: after n units its own array has come round.
  Array a(budget_, 4099), b(budget_, 4099);
  std::vector<MessageUnit> units;
  for (int hop = 0; hop < n_; ++hop) {
    const Array &from = hop % 2 == 0 ? a : b, &to = hop % 2 == 0 ? b : a;
    units.push_back(
        {0, {from.message(Kind::send, next_, hop), to.message(Kind::recv, before_, hop)}});
  }
  const auto route = transport_->open(units, budget_);
  for (int round = 0; round < 20; ++round) {
    a.fill(r_, 0, round);
    comm_.barrier();
    run(*route, units.size());
    EXPECT_EQ((n_ % 2 == 0 ? a : b).wrong(r_, 0, round), 0) << "round " << round;
  }
}

TEST_P(transport, sums_over_all_ranks) {
  const std::vector<float> mine{1.f + static_cast<float>(r_), 0.5f};
  const std::vector<double> mine64{1e-3 * (r_ + 1)};
  const Buffer x(budget_, 8, "x", Space::cuda), y(budget_, 8, "y", Space::cuda);
  memory::copy(x.data(), mine.data(), 8);
  memory::copy(y.data(), mine64.data(), 8);
  memory::synchronize();
  const auto route =
      transport_->open({{0, {{Kind::all_reduce, x.data(), 2, DType::f32, -1, 1, 2}}},
                        {0, {{Kind::all_reduce, y.data(), 1, DType::f64, -1, 2, 2}}}},
                       budget_);
  comm_.reset_counters();
  run(*route, 2);
  std::vector<float> sum(2);
  std::vector<double> sum64(1);
  memory::copy(sum.data(), x.data(), 8);
  memory::copy(sum64.data(), y.data(), 8);
  memory::synchronize();
  EXPECT_EQ(sum[0], static_cast<float>(n_ * (n_ + 1)) / 2);
  EXPECT_EQ(sum[1], 0.5f * static_cast<float>(n_));
  EXPECT_NEAR(sum64[0], 1e-3 * n_ * (n_ + 1) / 2, 1e-15);
  EXPECT_EQ(comm_.bytes_sent(2), n_ > 1 ? 16 : 0);
}

TEST_P(transport, a_captured_graph_sends_again_and_again) {
  Array out(budget_, 50021), in(budget_, 50021);
  const auto route = transport_->open(
      {{0, {out.message(Kind::send, next_, 1), in.message(Kind::recv, before_, 1)}}}, budget_);
  const memory::Graph graph(stream_.handle(), [&] { route->start(0, stream_.handle()); });
  for (int round = 0; round < 5; ++round) {
    out.fill(r_, next_, round);
    comm_.barrier();
    graph.launch(stream_.handle());
    finish(*route);
    EXPECT_EQ(in.wrong(before_, r_, round), 0) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(gpu, transport, ::testing::Values("nccl", "peer", "staged"),
                         [](const auto& info) { return std::string(info.param); });

TEST(gpu_transport, nccl_is_refused_by_name_where_ranks_share_a_device) {
  if (!device.shared) GTEST_SKIP() << "no device is shared";
  try {
    make_transport(*world, {.name = "nccl", .shared_device = true});
    FAIL() << "two ranks on one device";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::environment);
    EXPECT_NE(e.message().find("share a GPU"), std::string::npos) << e.message();
  }
}

TEST(gpu_transport, auto_finds_one_and_all_ranks_get_the_same) {
  const auto found = make_transport(*world, {.shared_device = device.shared});
  std::string name(found->name());
  world->broadcast(name, 0);
  EXPECT_EQ(found->name(), name);
  EXPECT_FALSE(device.shared && name == "nccl");
}

}  // namespace
}  // namespace tessera::parallel

int main(int argc, char** argv) {
  using namespace tessera;
  ::testing::InitGoogleTest(&argc, argv);
  const parallel::World guard(argc, argv);
  parallel::Communicator comm(MPI_COMM_WORLD, "test");
  parallel::world = &comm;
  if (comm.all_reduce_min(std::int64_t{memory::device_count()}) == 0) {
    if (comm.rank() == 0) std::printf("skipped: these tests need a CUDA device on every rank\n");
    return 77;
  }
  parallel::device = parallel::choose_device(comm, parallel::find_placement(comm), true);
  test::report_of_rank(comm.rank());
  const int failed = RUN_ALL_TESTS();
  return comm.all_reduce_max(std::int64_t{failed}) == 0 ? 0 : 1;
}
