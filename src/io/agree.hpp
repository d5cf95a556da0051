// SPDX-License-Identifier: Apache-2.0
// Compares what the ranks are about to do with a file. HDF5 trusts that all of them do the same;
// where they do not, files are corrupted or a close hangs without a word. Internal to io.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.hpp"
#include "parallel/communicator.hpp"

namespace tessera::io {

/// Error(io) on all ranks when `what` and `name` are not the same on all of them.
inline void agree(const parallel::Communicator& comm, const std::string& what,
                  const std::string& name) {
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>{}(what + '\0' + name) >> 1);
  if (comm.all_reduce_min(hash) == comm.all_reduce_max(hash)) return;
  std::string calls;
  const auto all = comm.gather(what + " '" + name + "'", 0);
  for (std::size_t r = 0; r < all.size() && r < 8; ++r)
    calls += (r ? ", rank " : "rank ") + std::to_string(r) + ": " + all[r];
  comm.broadcast(calls, 0);
  throw parallel::AgreedError(Exit::io, "ranks differ in what they do with a file: " + calls,
                              "name every dataset, group and attribute on all ranks, in one order");
}

}  // namespace tessera::io
