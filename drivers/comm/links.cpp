// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/links.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "drivers/comm/timing.hpp"

namespace tessera::drivers {

namespace {

using parallel::Communicator;
using parallel::RequestSet;

constexpr std::int64_t small_bytes = 8, large_bytes = 1 << 20;

/// Partner of `rank` in one round of a tournament in which every pair meets once (circle method);
/// -1: sits out. `players` is even, ranks from n on do not exist.
int partner_of(int rank, int round, int players, int n) {
  const int last = players - 1;
  int partner = 0;
  if (rank == last) {
    partner = round * (players / 2) % last;
  } else {
    partner = (round - rank + last) % last;
    if (partner == rank) partner = last;
  }
  return partner < n ? partner : -1;
}

/// Half the median time of a message there and back; 0 when there is no partner.
double ping_pong(Communicator& comm, int partner, std::int64_t bytes, int repeats) {
  if (partner < 0) return 0;
  std::vector<std::byte> data(bytes);
  const auto one_way = [&](bool send) {
    RequestSet set;
    if (send)
      comm.isend(set, data.data(), bytes, partner, 1, 0);
    else
      comm.irecv(set, data.data(), bytes, partner, 1);
    set.wait();
  };
  const bool first = comm.rank() < partner;
  return median_time(repeats,
                     [&] {
                       one_way(first);
                       one_way(!first);
                     }) /
         2;
}

plan::Tier tier_of(double small_s, double large_s) {
  const double rest = std::max(large_s - small_s, 1e-9);
  return {small_s, static_cast<double>(large_bytes - small_bytes) / rest};
}

void measure_pairs(Communicator& comm, bool quick, Links& links) {
  const int n = comm.size(), players = n + n % 2;
  std::vector<double> mine(2 * n, 0.0);
  for (int round = 0; round + 1 < players; ++round) {
    const int partner = partner_of(comm.rank(), round, players, n);
    const double small_s = ping_pong(comm, partner, small_bytes, quick ? 100 : 1000);
    const double large_s = ping_pong(comm, partner, large_bytes, quick ? 5 : 40);
    if (partner >= 0) {
      mine[2 * partner] = small_s;
      mine[2 * partner + 1] = large_s;
    }
    sleeping_barrier(comm);
  }
  const auto bytes = comm.all_gather_bytes(std::as_bytes(std::span(mine)));
  std::vector<double> all(bytes.size() / sizeof(double));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  links.pairs.resize(static_cast<std::size_t>(n) * n);
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      const auto there = 2 * (static_cast<std::size_t>(a) * n + b);
      const auto back = 2 * (static_cast<std::size_t>(b) * n + a);
      if (a != b) {
        links.pairs[there / 2] =
            tier_of((all[there] + all[back]) / 2, (all[there + 1] + all[back + 1]) / 2);
      }
    }
  }
}

plan::Tier loaded_tier(Communicator& comm, std::pair<int, int> ring, bool quick) {
  const auto [next, before] = ring;
  const double small_s = shift_time(comm, next, before, small_bytes, quick ? 100 : 1000);
  return tier_of(small_s, shift_time(comm, next, before, large_bytes, quick ? 10 : 60));
}

}  // namespace

std::vector<int> find_hosts(const Communicator& comm) {
  std::array<char, 256> name{};
  std::strncpy(name.data(), parallel::host_name().c_str(), name.size() - 1);
  const auto all = comm.all_gather_bytes(std::as_bytes(std::span(name)));
  std::map<std::string, int> numbers;
  std::vector<int> host_of;
  for (int r = 0; r < comm.size(); ++r) {
    const std::string host(reinterpret_cast<const char*>(&all[r * name.size()]));
    host_of.push_back(numbers.emplace(host, static_cast<int>(numbers.size())).first->second);
  }
  return host_of;
}

std::pair<int, int> neighbours_across_hosts(const std::vector<int>& host_of, int rank) {
  std::vector<int> order(host_of.size()), place(host_of.size());
  std::map<int, int> seen;
  for (std::size_t r = 0; r < host_of.size(); ++r) place[r] = seen[host_of[r]]++;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::pair(place[a], host_of[a]) < std::pair(place[b], host_of[b]);
  });
  const auto at = std::find(order.begin(), order.end(), rank) - order.begin();
  const auto n = static_cast<std::ptrdiff_t>(order.size());
  return {order[(at + 1) % n], order[(at + n - 1) % n]};
}

std::pair<int, int> neighbours_on_host(const std::vector<int>& host_of, int rank) {
  std::vector<int> here;
  for (int r = 0; r < static_cast<int>(host_of.size()); ++r) {
    if (host_of[r] == host_of[rank]) here.push_back(r);
  }
  const auto at = std::find(here.begin(), here.end(), rank) - here.begin();
  const auto n = static_cast<std::ptrdiff_t>(here.size());
  return {here[(at + 1) % n], here[(at + n - 1) % n]};
}

double shift_time(Communicator& comm, int next, int before, std::int64_t bytes, int repeats) {
  std::vector<std::byte> out(bytes), in(bytes);
  sleeping_barrier(comm);
  const double mine = median_time(repeats, [&] {
    RequestSet set;
    comm.irecv(set, in.data(), bytes, before, 2);
    comm.isend(set, out.data(), bytes, next, 2, 0);
    set.wait();
  });
  return comm.all_reduce_max(mine);
}

Links measure_links(Communicator& comm, bool quick) {
  Links links;
  links.host_of = find_hosts(comm);
  measure_pairs(comm, quick, links);
  links.intra = loaded_tier(comm, neighbours_on_host(links.host_of, comm.rank()), quick);
  links.inter = links.intra;
  if (*std::max_element(links.host_of.begin(), links.host_of.end()) > 0) {
    links.inter = loaded_tier(comm, neighbours_across_hosts(links.host_of, comm.rank()), quick);
  }
  return links;
}

}  // namespace tessera::drivers
