// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth between ranks: of every pair by ping-pong, and of all ranks at once by a
// shift around a ring, which is how the schemes use the links and what the machine model takes.
#pragma once

#include <vector>

#include "parallel/communicator.hpp"
#include "plan/machine.hpp"

namespace tessera::drivers {

struct Links {
  std::vector<int> host_of;       ///< [rank] number of its host, in order of first appearance
  std::vector<plan::Tier> pairs;  ///< [from * n + to], symmetric; the diagonal is empty
  plan::Tier intra, inter;        ///< loaded; `inter` equals `intra` when there is one host
};

/// Sizes: 8 bytes for latency, 1 MiB for bandwidth. All ranks call it and get the same result.
Links measure_links(parallel::Communicator& comm, bool quick);

/// Median time of a message of `bytes` that every rank sends to `next` and gets from `before`; the
/// largest over the ranks.
double shift_time(parallel::Communicator& comm, int next, int before, std::int64_t bytes,
                  int repeats);

/// [rank] number of its host, in order of first appearance. Collective.
std::vector<int> find_hosts(const parallel::Communicator& comm);

/// Ranks ordered so that neighbours live on different hosts where hosts have equally many ranks:
/// this rank's {next, before}.
std::pair<int, int> neighbours_across_hosts(const std::vector<int>& host_of, int rank);

/// The order of ranks in a ring inside each host: this rank's {next, before}.
std::pair<int, int> neighbours_on_host(const std::vector<int>& host_of, int rank);

}  // namespace tessera::drivers
