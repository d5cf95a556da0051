// SPDX-License-Identifier: Apache-2.0
// Communicator on real ranks: exchange, byte counts, the piece border of large messages,
// agreement about failures, placement.
#include <fmt/format.h>

#include <numeric>
#include <random>

#include "validation/mpi/test_main.hpp"

namespace tessera::parallel {
namespace {

using test::world;

/// Byte i of the message from `from` to `to`: different for every pair, so a swap is seen.
std::byte pattern(int from, int to, std::int64_t i) {
  return static_cast<std::byte>((i * 131 + from * 17 + to * 29 + (i >> 8)) & 255);
}

std::vector<std::byte> message(int from, int to, std::int64_t bytes) {
  std::vector<std::byte> m(bytes);
  for (std::int64_t i = 0; i < bytes; ++i) m[i] = pattern(from, to, i);
  return m;
}

/// Sends `bytes` around the ring and checks what arrives.
void shift(Communicator& comm, std::int64_t bytes) {
  const int next = (comm.rank() + 1) % comm.size();
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  const auto out = message(comm.rank(), next, bytes);
  std::vector<std::byte> in(bytes + 8, std::byte{0xEE});  // 8 bytes of guard behind the message
  RequestSet set;
  comm.irecv(set, in.data(), bytes, before, 5);
  comm.isend(set, out.data(), bytes, next, 5, 0);
  set.wait();
  EXPECT_TRUE(set.empty());
  auto expected = message(before, comm.rank(), bytes);
  expected.resize(bytes + 8, std::byte{0xEE});
  EXPECT_EQ(in, expected) << bytes << " bytes";
}

TEST(parallel, exchange_between_neighbours) {
  Communicator comm(world().handle(), "exchange");
  for (const std::int64_t bytes : {0, 1, 7, 4096, 100000}) shift(comm, bytes);
}

TEST(parallel, bytes_are_counted_per_axis_and_control_apart) {
  Communicator comm(world().handle(), "count");
  const int n = comm.size(), r = comm.rank();
  std::vector<std::vector<std::byte>> in(n), out(n);
  RequestSet set;
  std::int64_t expected = 0;
  for (int p = 0; p < n; ++p) {
    const std::int64_t to = 10 + 3 * p + r, from = 10 + 3 * r + p;
    out[p] = message(r, p, to);
    in[p].resize(from);
    comm.irecv(set, in[p].data(), from, p, 1);
    comm.isend(set, out[p].data(), to, p, 1, 2);
    if (p != r) expected += to;
  }
  while (!set.test()) continue;
  EXPECT_EQ(comm.bytes_sent(2), expected);  // a message to oneself does not leave the rank
  EXPECT_EQ(comm.bytes_sent(0), 0);
  EXPECT_EQ(comm.bytes_sent(7), 0);
  EXPECT_EQ(comm.control_bytes(), 0);

  std::vector<float> values(25, 1.0f);
  comm.all_reduce_sum(std::span(values), 1);
  EXPECT_EQ(values, std::vector<float>(25, static_cast<float>(n)));
  EXPECT_EQ(comm.bytes_sent(1), n > 1 ? 100 : 0);

  comm.all_reduce_max(1.0);
  EXPECT_EQ(comm.control_bytes(), n > 1 ? 8 : 0);
  std::int64_t from_before = -1;  // point to point without an axis is control traffic, too
  RequestSet control;
  comm.irecv(control, &from_before, 8, (r + n - 1) % n, 9);
  const std::int64_t mine = r;
  comm.isend(control, &mine, 8, (r + 1) % n, 9, Communicator::control_axis);
  control.wait();
  EXPECT_EQ(from_before, (r + n - 1) % n);
  EXPECT_EQ(comm.control_bytes(), n > 1 ? 16 : 0);
  EXPECT_EQ(comm.bytes_sent().size(), 3u);  // no axis came of it
  comm.reset_counters();
  EXPECT_EQ(comm.bytes_sent(2), 0);
  EXPECT_EQ(comm.control_bytes(), 0);
}

// OB-103: counts of MPI 3.1 are int. The planner cuts 3.0e9 bytes below 2^31; the transfer itself
// is tried with a small piece size at, below and above the border.
TEST(parallel, OB103_pieces_stay_below_the_count_limit) {
  const auto cut = pieces(3'000'000'000, Communicator::max_message_bytes);
  EXPECT_EQ(cut, (std::vector<std::int64_t>{1 << 30, 1 << 30, 3'000'000'000 - (2LL << 30)}));
  EXPECT_EQ(pieces(0, 16), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(pieces(16, 16), (std::vector<std::int64_t>{16}));
  EXPECT_EQ(pieces(17, 16), (std::vector<std::int64_t>{16, 1}));
  EXPECT_THROW(pieces(-1, 16), Error);
  EXPECT_THROW(pieces(1, 0), Error);
}

TEST(parallel, OB103_messages_around_the_piece_border) {
  Communicator comm(world().handle(), "pieces", 1000);
  std::int64_t expected = 0;
  for (const std::int64_t bytes : {0, 999, 1000, 1001, 2000, 12345}) {
    shift(comm, bytes);
    expected += bytes;
  }
  EXPECT_EQ(comm.bytes_sent(0), comm.size() > 1 ? expected : 0);

  std::vector<double> values(777);  // 6216 bytes: seven pieces
  std::iota(values.begin(), values.end(), comm.rank());
  comm.all_reduce_sum(std::span(values));
  for (int i = 0; i < 777; ++i) {
    EXPECT_EQ(values[i], comm.size() * i + comm.size() * (comm.size() - 1) / 2.0);
  }
  std::string text = comm.rank() == 0 ? std::string(2500, 'x') + "end" : "";
  comm.broadcast(text, 0);
  EXPECT_EQ(text, std::string(2500, 'x') + "end");
}

// OB-101: many pieces to every peer, all in flight at once, with random delays between calls.
TEST(parallel, OB101_many_messages_to_every_peer) {
  Communicator comm(world().handle(), "rounds");
  const int n = comm.size(), r = comm.rank(), each = 64;
  std::vector<std::int64_t> out(n * each), in(n * each, -1);
  RequestSet set;
  for (int shift = 1; shift < n; ++shift) {  // symmetric pairs, in the same rounds on all ranks
    const int to = (r + shift) % n, from = (r + n - shift) % n;
    for (int k = 0; k < each; ++k) {
      out[to * each + k] = (r * 100 + to) * 1000 + k;
      comm.irecv(set, &in[from * each + k], 8, from, k);
      comm.isend(set, &out[to * each + k], 8, to, k, 0);
    }
    if (shift % 3 == r % 3) set.test();
  }
  set.wait();
  for (int p = 0; p < n; ++p) {
    for (int k = 0; k < each && p != r; ++k) {
      ASSERT_EQ(in[p * each + k], (p * 100 + r) * 1000 + k);
    }
  }
  EXPECT_EQ(comm.bytes_sent(0), 8 * each * (n - 1));
}

// OB-102: two communicators in use at once do not disturb each other (same tags, other payload).
TEST(parallel, OB102_two_communicators_at_once) {
  Communicator one(world().handle(), "one"), two(world().handle(), "two");
  const int n = one.size(), next = (one.rank() + 1) % n, before = (one.rank() + n - 1) % n;
  std::mt19937 random(one.rank());
  for (int i = 0; i < 200; ++i) {
    const int a = 1000 + one.rank(), b = 2000 + one.rank();
    int x = -1, y = -1;
    RequestSet set_one, set_two;
    const bool swap = random() % 2 == 0;  // non-blocking calls may be issued in any order
    if (swap) two.isend(set_two, &b, 4, next, 0, 0);
    one.irecv(set_one, &x, 4, before, 0);
    one.isend(set_one, &a, 4, next, 0, 0);
    two.irecv(set_two, &y, 4, before, 0);
    if (!swap) two.isend(set_two, &b, 4, next, 0, 0);
    while (!(set_one.test() & set_two.test())) continue;
    ASSERT_EQ(x, 1000 + before);
    ASSERT_EQ(y, 2000 + before);
  }
}

TEST(parallel, a_short_message_names_both_ranks) {
  Communicator comm(world().handle(), "short");
  if (comm.size() < 2) GTEST_SKIP() << "needs two ranks";
  if (comm.rank() > 1) return;
  std::array<std::byte, 16> data{};
  RequestSet set;
  if (comm.rank() == 0) {
    comm.isend(set, data.data(), 12, 1, 3, 0);
    set.wait();
    return;
  }
  comm.irecv(set, data.data(), 16, 0, 3);
  EXPECT_EQ(set.describe(), "receive of 16 B from rank 0 (tag 3)");
  try {
    set.wait();
    FAIL() << "a message of another size was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::communication);
    EXPECT_EQ(e.message(), "rank 1 expected 16 bytes from rank 0 (tag 3) and got 12");
  }
}

TEST(parallel, an_mpi_error_becomes_an_error_with_its_text) {
  Communicator comm(world().handle(), "faulty");
  int value = 0;
  RequestSet set;
  try {
    comm.isend(set, &value, 4, comm.size() + 3, 0, 0);
    FAIL() << "a peer outside the communicator was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::communication);
    EXPECT_NE(e.message().find(fmt::format("with rank {}", comm.size() + 3)), std::string::npos);
    EXPECT_NE(e.message().find("faulty"), std::string::npos);
    EXPECT_NE(e.message().find("rank"), std::string::npos);
  }
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(comm.bytes_sent(0), 0);  // what was not sent is not counted
}

TEST(parallel, gathers_keep_rank_order_and_uneven_lengths) {
  Communicator comm(world().handle(), "gather", 100);
  const int n = comm.size(), r = comm.rank(), root = n - 1;
  const auto texts = comm.gather(std::string(70 * r, static_cast<char>('a' + r)), root);
  ASSERT_EQ(static_cast<int>(texts.size()), r == root ? n : 0);
  for (std::size_t p = 0; p < texts.size(); ++p) {
    EXPECT_EQ(texts[p], std::string(70 * p, static_cast<char>('a' + p)));
  }
  const auto values = comm.all_gather(std::int64_t{r * r});
  const std::array<std::byte, 3> mine{std::byte(r), std::byte(7), std::byte(r + 1)};
  const auto bytes = comm.all_gather_bytes(mine);
  ASSERT_EQ(static_cast<int>(bytes.size()), 3 * n);
  for (int p = 0; p < n; ++p) {
    EXPECT_EQ(values[p], p * p);
    EXPECT_EQ(bytes[3 * p + 2], std::byte(p + 1));
  }
  EXPECT_EQ(comm.all_reduce_min(std::int64_t{r + 5}), 5);
  EXPECT_EQ(comm.all_reduce_max(std::int64_t{r}), n - 1);
}

/// Runs `together` and returns the text of the AgreedError, empty if there was none.
std::string agreed(const Communicator& comm, const std::function<void()>& body) {
  try {
    together(comm, body);
  } catch (const AgreedError& e) {
    EXPECT_EQ(e.code(), Exit::io);
    return e.what();
  }
  return "";
}

TEST(parallel, together_gives_every_rank_the_error_of_the_lowest_failing_one) {
  const auto& comm = world();
  const int n = comm.size(), r = comm.rank();
  EXPECT_EQ(agreed(comm, [] {}), "");
  const auto fail = [] { throw Error(Exit::io, "no such file", "look again", "deck.toml:3"); };
  // All alike: said once, without a rank.
  EXPECT_EQ(agreed(comm, fail), "no such file\n  at: deck.toml:3\n  try: look again");
  // The last rank alone: named with its host.
  const std::string one = agreed(comm, [&] {
    if (r == n - 1) fail();
  });
  if (n > 1) {
    EXPECT_EQ(one, fmt::format("[rank {} {}] no such file\n  at: deck.toml:3\n  try: look again",
                               n - 1, host_name()));
  }
  // All, with different texts: the lowest rank's.
  const std::string differ =
      agreed(comm, [&] { throw Error(Exit::io, fmt::format("slab {}", r)); });
  EXPECT_EQ(differ, n > 1 ? fmt::format("[rank 0 {}] slab 0", host_name()) : "slab 0");
  comm.barrier();  // the ranks are still in step
}

TEST(parallel, together_turns_other_exceptions_into_environment_errors) {
  for (const bool memory : {true, false}) {
    try {
      together(world(), [&] {
        if (memory) throw std::bad_alloc();
        throw std::runtime_error("odd");
      });
      FAIL() << "nothing was thrown";
    } catch (const AgreedError& e) {
      EXPECT_EQ(e.code(), Exit::environment);
      EXPECT_EQ(e.message(), memory ? "out of memory" : "unexpected: odd");
    }
  }
}

TEST(parallel, OB106_placement_comes_from_shared_memory) {
  const Placement here = find_placement(world());
  EXPECT_EQ(here.num_hosts, 1);  // the tests run on one host
  EXPECT_EQ(here.ranks_on_host, world().size());
  EXPECT_EQ(here.rank_on_host, world().rank());
  EXPECT_GE(here.cores_on_host, 1);
  EXPECT_EQ(here.oversubscribed, world().size() > here.cores_on_host);
}

}  // namespace
}  // namespace tessera::parallel
