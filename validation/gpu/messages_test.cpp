// SPDX-License-Identifier: Apache-2.0
// Faults of messages between devices that users of similar systems met, by every transport; tests
// are named after entries of the list of field reports. A watchdog ends what hangs.
#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "parallel/watchdog.hpp"
#include "rig.hpp"
#include "spin.hpp"

namespace tessera::test {
namespace {

using Kind = parallel::Message::Kind;

/// Device memory and what it should hold.
class Array {
 public:
  Array(Budget& budget, std::int64_t count)
      : host_(static_cast<std::size_t>(count)), buffer_(budget, 4 * count, "test", Space::cuda) {}
  void fill(int value) {
    std::fill(host_.begin(), host_.end(), static_cast<float>(value));
    memory::copy(buffer_.data(), host_.data(), buffer_.bytes());
  }
  std::int64_t wrong(int value) {
    memory::copy(host_.data(), buffer_.data(), buffer_.bytes());
    memory::synchronize();
    return std::count_if(host_.begin(), host_.end(),
                         [&](float x) { return x != static_cast<float>(value); });
  }
  parallel::Message message(Kind kind, int peer, int tag) const {
    const auto count = static_cast<std::int64_t>(host_.size());
    return {kind, buffer_.data(), count, DType::f32, peer, tag, 0};
  }

 private:
  std::vector<float> host_;
  Buffer buffer_;
};

/// Waits for what is on the stream.
void finish(parallel::Route& route, const memory::Stream& stream) {
  const memory::Event end;
  end.record(stream.handle());
  while (!end.done()) route.progress();
}

/// Units 0 and 2: sums on queue 0; units 1 and 3: all-to-all on queue 1.
class Traffic {
 public:
  static constexpr int pairs = 2;
  Traffic(parallel::Transport& transport, std::int64_t count)
      : in_turn_(transport.one_at_a_time()) {
    std::vector<parallel::MessageUnit> units;
    for (int i = 0; i < pairs; ++i) {
      sums_.emplace_back(budget_, count);
      units.push_back({0, {sums_.back().message(Kind::all_reduce, -1, i)}});
      units.push_back({1, {}});
      for (int p = 0; p < n_; ++p) {
        units.back().messages.push_back(
            out_.emplace_back(budget_, count).message(Kind::send, p, 10 + i));
        units.back().messages.push_back(
            in_.emplace_back(budget_, count).message(Kind::recv, p, 10 + i));
      }
    }
    route_ = transport.open(units, budget_);
  }
  void fill(int round) {
    for (int i = 0; i < pairs; ++i) {
      sums_[i].fill(round + i + r_);
      for (int p = 0; p < n_; ++p) out_[i * n_ + p].fill(round + 100 * i + 10 * r_ + p);
    }
    memory::synchronize();
  }
  std::int64_t wrong(int round) {
    std::int64_t count = 0;
    for (int i = 0; i < pairs; ++i) {
      count += sums_[i].wrong(n_ * (round + i) + n_ * (n_ - 1) / 2);
      for (int p = 0; p < n_; ++p) count += in_[i * n_ + p].wrong(round + 100 * i + 10 * p + r_);
    }
    return count;
  }
  /// Puts all units on their streams, which start behind `streams[0]` and end in it.
  void start(const std::function<void(void*)>& delay) {
    fork_.record(streams_[0].handle());
    streams_[1].wait(fork_);
    for (std::size_t unit = 0; unit < 2 * pairs; ++unit) {
      void* stream = streams_[unit % 2].handle();
      delay(stream);
      if (in_turn_ && unit > 0) streams_[unit % 2].wait(ends_[unit - 1]);
      route_->start(unit, stream);
      if (in_turn_) ends_[unit].record(stream);
    }
    join_.record(streams_[1].handle());
    streams_[0].wait(join_);
  }
  void finish() { test::finish(*route_, streams_[0]); }
  void* origin() const { return streams_[0].handle(); }

 private:
  const int n_ = rig().comm.size(), r_ = rig().comm.rank();
  Budget budget_;
  std::deque<Array> sums_, out_, in_;
  memory::Stream streams_[2]{memory::Stream(memory::Stream::Priority::high),
                             memory::Stream(memory::Stream::Priority::high)};
  memory::Event fork_, join_, ends_[2 * pairs];
  const bool in_turn_;
  std::unique_ptr<parallel::Route> route_;
};

/// Calls `body` with each transport that works here.
void by_every_transport(const std::function<void(const std::string&, parallel::Transport&,
                                                 parallel::Watchdog&)>& body) {
  // A kernel that is launched for the first time may wait for an idle device: not behind a
  // transfer.
  spin(1, nullptr);
  memory::synchronize();
  int found = 0;
  for (const std::string& name : rig().transports()) {
    SCOPED_TRACE(name);
    std::unique_ptr<parallel::Transport> transport;
    try {
      transport = rig().transport(name);
    } catch (const Error& e) {
      say("{}: {}", name, e.message());
      continue;
    }
    parallel::Watchdog watchdog(60, fmt::format("rank {}, {}", rig().comm.rank(), name));
    body(name, *transport, watchdog);
    ++found;
  }
  EXPECT_GT(found, 0) << "no transport works here";
}

/// Sums on one queue, all-to-all on another, started one by one and as one graph. NCCL has two
/// communicators then, which may wait for each other for ever.
TEST(gpu_messages, OB_102_two_queues_at_once_with_random_delays) {
  std::mt19937 random(static_cast<unsigned>(rig().comm.rank()));
  const auto device_delay = [&](void* stream) {
    if (random() % 3 == 0) spin(random() % 60000, stream);
  };
  by_every_transport([&](const std::string& name, auto& transport, auto& watchdog) {
    // Small messages, and large ones, for which NCCL takes more multiprocessors.
    for (const std::int64_t count : {1000, 1000003}) {
      Traffic traffic(transport, count);
      const int rounds = rig().device.shared ? 50 : count < 10000 ? 1000 : 40;
      std::int64_t wrong = 0;
      std::unique_ptr<memory::Graph> graph;
      for (int round = 0; round < 2 * rounds; ++round) {
        watchdog.beat();
        traffic.fill(round);
        if (round == rounds)
          graph = std::make_unique<memory::Graph>(traffic.origin(),
                                                  [&] { traffic.start(device_delay); });
        if (random() % 3 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
        graph ? graph->launch(traffic.origin()) : traffic.start(device_delay);
        traffic.finish();
        wrong += traffic.wrong(round);
      }
      EXPECT_EQ(wrong, 0) << count << " elements";
      say("{}: {} rounds of {} elements one by one, {} as a graph", name, rounds, count, rounds);
    }
  });
}

TEST(gpu_messages, OB_103_a_message_beyond_2_GiB_arrives_whole) {
  const int n = rig().comm.size(), r = rig().comm.rank();
  if (n > 2) GTEST_SKIP() << "takes 9 GB of pinned memory a rank";
  const std::int64_t bytes = 2'200'000'004, window = 4096;
  const std::int64_t windows[] = {0, (std::int64_t{1} << 31) - window / 2, bytes - window};
  by_every_transport([&](const std::string&, auto& transport, auto&) {
    Budget budget;
    const Buffer out(budget, bytes, "out", Space::cuda), in(budget, bytes, "in", Space::cuda);
    std::vector<char> text(window);
    for (const std::int64_t at : windows) {
      for (std::int64_t i = 0; i < window; ++i) text[i] = static_cast<char>(at % 97 + 7 * i + r);
      memory::copy(static_cast<char*>(out.data()) + at, text.data(), window);
      memory::synchronize();
    }
    const auto route =
        transport.open({{0,
                         {{Kind::send, out.data(), bytes / 4, DType::f32, (r + 1) % n, 0, 0},
                          {Kind::recv, in.data(), bytes / 4, DType::f32, (r + n - 1) % n, 0, 0}}}},
                       budget);
    const memory::Stream stream;
    route->start(0, stream.handle());
    finish(*route, stream);
    const int from = (r + n - 1) % n;
    for (const std::int64_t at : windows) {
      memory::copy(text.data(), static_cast<char*>(in.data()) + at, window);
      memory::synchronize();
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < window; ++i)
        wrong += text[i] != static_cast<char>(at % 97 + 7 * i + from);
      EXPECT_EQ(wrong, 0) << "from byte " << at;
    }
  });
}

/// What is sent is written 10 ms after the host put the message on the stream, what came is read at
/// once on the same stream.
TEST(gpu_messages, OB_104_messages_wait_for_the_work_before_them) {
  const int n = rig().comm.size(), r = rig().comm.rank(), from = (r + n - 1) % n;
  by_every_transport([&](const std::string&, auto& transport, auto& watchdog) {
    Budget budget;
    const std::int64_t count = 65537;
    Array values[2]{{budget, count}, {budget, count}};
    Array out(budget, count), in(budget, count), seen(budget, count);
    const auto route = transport.open(
        {{0, {out.message(Kind::send, (r + 1) % n, 0), in.message(Kind::recv, from, 0)}}}, budget);
    const memory::Stream stream;
    const auto copy = [&](const Array& to, const Array& what) {
      memory::copy(to.message(Kind::send, 0, 0).data, what.message(Kind::send, 0, 0).data,
                   4 * count, stream.handle());
    };
    for (int i : {0, 1}) values[i].fill(1000 * r + i + 1);
    memory::synchronize();
    std::int64_t wrong = 0;
    for (int round = 0; round < 100; ++round) {
      watchdog.beat();
      spin(10'000'000, stream.handle());
      copy(out, values[round % 2]);
      route->start(0, stream.handle());
      copy(seen, in);
      finish(*route, stream);
      wrong += seen.wrong(1000 * from + round % 2 + 1);
    }
    EXPECT_EQ(wrong, 0);
  });
}

}  // namespace
}  // namespace tessera::test
