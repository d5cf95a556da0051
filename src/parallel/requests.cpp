// SPDX-License-Identifier: Apache-2.0
// Completion of point-to-point requests, and how MPI errors become text.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "parallel/communicator.hpp"
#include "parallel/mpi_error.hpp"

namespace tessera::parallel {

std::string mpi_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "unknown MPI error";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

Error mpi_error(int code, const char* call, const std::string& comm, int rank, int peer) {
  const std::string on = comm.empty() ? "" : fmt::format(" on communicator '{}'", comm);
  const std::string with = peer < 0 ? "" : fmt::format(" with rank {}", peer);
  return Error(Exit::communication,
               fmt::format("{} failed on rank {}{}{}: {}", call, rank, with, on, mpi_text(code)));
}

RequestSet::~RequestSet() {
  if (requests_.empty()) return;
  // Reached while an exception unwinds; the buffers may be gone, so nothing is touched.
  std::fprintf(stderr, "[rank %d] warning: %zu messages were left pending: %s\n", items_[0].rank,
               requests_.size(), describe().c_str());
}

bool RequestSet::test() {
  if (requests_.empty()) return true;
  statuses_.resize(requests_.size());
  int done = 0;
  const int code =
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
  if (code == MPI_SUCCESS && !done) return false;
  finish(code, "MPI_Testall");
  return true;
}

void RequestSet::wait() {
  if (requests_.empty()) return;
  statuses_.resize(requests_.size());
  const int code =
      MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), statuses_.data());
  finish(code, "MPI_Waitall");
}

void RequestSet::finish(int code, const char* call) {
  const std::vector<Item> items = std::move(items_);
  requests_.clear();
  items_.clear();
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    // Status error fields are defined only when the call said so.
    if (code == MPI_ERR_IN_STATUS && statuses_[i].MPI_ERROR != MPI_SUCCESS &&
        statuses_[i].MPI_ERROR != MPI_ERR_PENDING) {
      throw mpi_error(statuses_[i].MPI_ERROR, item.receive ? "receive" : "send", "", item.rank,
                      item.peer);
    }
    int received = item.bytes;
    if (code == MPI_SUCCESS && item.receive) {
      MPI_Get_count(&statuses_[i], MPI_BYTE, &received);
    }
    if (received != item.bytes) {
      throw Error(Exit::communication,
                  fmt::format("rank {} expected {} bytes from rank {} (tag {}) and got {}",
                              item.rank, item.bytes, item.peer, item.tag, received),
                  "the two ranks disagree about the plan; compare their inputs and decks");
    }
  }
  if (code != MPI_SUCCESS) throw mpi_error(code, call, "", items[0].rank, -1);
}

std::string RequestSet::describe(int most) const {
  std::string text;
  const int shown = std::min<int>(most, static_cast<int>(items_.size()));
  for (int i = 0; i < shown; ++i) {
    const Item& item = items_[i];
    text += fmt::format("{}{} of {} B {} rank {} (tag {})", i == 0 ? "" : ", ",
                        item.receive ? "receive" : "send", item.bytes, item.receive ? "from" : "to",
                        item.peer, item.tag);
  }
  const int left = static_cast<int>(items_.size()) - shown;
  return left > 0 ? text + fmt::format(" and {} more", left) : text;
}

}  // namespace tessera::parallel
