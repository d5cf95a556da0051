// SPDX-License-Identifier: Apache-2.0
// MPI between ranks. A Communicator owns a duplicate of what it was made from, has
// MPI_ERRORS_RETURN set, turns every MPI error into Error(communication), and counts every payload
// byte that leaves the rank, per axis. MPI_COMM_WORLD itself appears in drivers only.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace tessera::parallel {

/// Initialises MPI (MPI_THREAD_FUNNELED at least) and finalises it last of all.
class World {
 public:
  World(int& argc, char**& argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;
};

/// Pending point-to-point requests. The owner completes them by `test` or `wait`; the destructor
/// only logs when something is left, it never waits, cancels or throws.
class RequestSet {
 public:
  RequestSet() = default;
  RequestSet(RequestSet&&) noexcept = default;
  RequestSet& operator=(RequestSet&&) noexcept = default;
  ~RequestSet();
  bool empty() const { return requests_.empty(); }
  /// Drives progress once; true when everything has completed (the set is empty then).
  /// Error(communication) naming both ranks when a message failed or had another size.
  bool test();
  void wait();
  /// "receive of 4096 B from rank 3 (tag 7), ..." of what is pending, for messages. At most `most`.
  std::string describe(int most = 4) const;

 private:
  friend class Communicator;
  struct Item {
    bool receive = false;
    int rank = 0, peer = 0, tag = 0;
    int bytes = 0;
  };
  void finish(int code, const char* call);
  std::vector<MPI_Request> requests_;
  std::vector<Item> items_;  // one per request
  std::vector<MPI_Status> statuses_;
};

class Communicator {
 public:
  static constexpr std::int64_t max_message_bytes = std::int64_t{1} << 30;
  static constexpr int control_axis = -1;

  /// Duplicates `parent`; `name` shows in MPI tools and in messages. `piece_bytes` is the largest
  /// message handed to MPI (its counts are int); tests make it small to cross the border cheaply.
  Communicator(MPI_Comm parent, const std::string& name,
               std::int64_t piece_bytes = max_message_bytes);

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm handle() const;

  /// Non-blocking send and receive of bytes. Payloads above the piece size go in pieces with the
  /// same tag, cut alike on both sides; 0 bytes are one empty message. `axis` is the caller's
  /// number of the axis the bytes are counted on, below 0 (control_axis) they are control traffic.
  /// What a rank sends to itself is not counted.
  void isend(RequestSet& set, const void* data, std::int64_t bytes, int peer, int tag, int axis);
  void irecv(RequestSet& set, void* data, std::int64_t bytes, int peer, int tag);
  /// Largest tag a caller may use (MPI_TAG_UB less the one that control traffic takes).
  int max_tag() const { return max_tag_; }

  // Control traffic, counted apart (axis "control" in reports: control_bytes()). The count is the
  // payload this rank puts in, once, whatever algorithm MPI chooses; 0 on a single rank.
  void barrier() const;
  void broadcast(std::string& text, int root) const;
  void broadcast(std::span<std::int64_t> values, int root) const;
  std::vector<std::int64_t> all_gather(std::int64_t value) const;
  std::vector<double> all_gather(double value) const;
  /// Gathers a text of every rank on `root`; others get an empty list.
  std::vector<std::string> gather(const std::string& text, int root) const;
  /// Gathers equal-sized blocks of bytes of every rank, in rank order, on all ranks.
  std::vector<std::byte> all_gather_bytes(std::span<const std::byte> mine) const;
  void all_reduce_sum(std::span<double> values) const;
  void all_reduce_sum(std::span<float> values, int axis);   ///< payload counted once on `axis`
  void all_reduce_sum(std::span<double> values, int axis);  ///< payload counted once on `axis`
  double all_reduce_max(double value) const;
  std::int64_t all_reduce_max(std::int64_t value) const;
  std::int64_t all_reduce_min(std::int64_t value) const;

  /// Payload bytes sent by this rank since the last reset, by axis number.
  const std::vector<std::int64_t>& bytes_sent() const { return bytes_sent_; }
  std::int64_t bytes_sent(int axis) const;
  std::int64_t control_bytes() const { return control_bytes_; }
  void reset_counters();
  /// Counts bytes that leave this rank by another way than MPI (parallel/transport.hpp).
  void count(int axis, std::int64_t bytes);

 private:
  void count_control(std::int64_t bytes) const;
  void check(int code, const char* call) const;
  template <class T>
  void reduce_in_pieces(std::span<T> values, MPI_Datatype type) const;
  std::shared_ptr<MPI_Comm> comm_;  // frees itself unless MPI is finalised
  std::string name_;
  std::int64_t piece_bytes_ = max_message_bytes;
  int rank_ = 0, size_ = 1, max_tag_ = 32766;
  std::vector<std::int64_t> bytes_sent_;
  mutable std::int64_t control_bytes_ = 0;
};

/// Cuts `bytes` into pieces of at most `limit`, all full but the last; 0 bytes are one piece of 0,
/// so that both sides of a message count alike. Used for messages and for HDF5 slabs.
std::vector<std::int64_t> pieces(std::int64_t bytes, std::int64_t limit);

/// Runs `body` on every rank. If it throws Error on any of them, all ranks throw the same Error
/// (that of the lowest failing rank, its rank and host named unless all ranks failed alike), so
/// that nobody is left waiting and the message is printed once. `body` itself must not wait for
/// other ranks unless it fails alike on all of them. std::bad_alloc becomes Error(environment).
void together(const Communicator& comm, const std::function<void()>& body);

/// The Error that `together` throws: known to all ranks, so that rank 0 prints it and all return.
class AgreedError : public Error {
 public:
  using Error::Error;
  explicit AgreedError(const Error& e) : Error(e) {}
};

/// Name of this host.
std::string host_name();
/// Cores that this process may use: affinity mask and cgroup quota.
int usable_cores();

/// Where the ranks of a communicator run.
struct Placement {
  std::string host;       ///< of this rank
  int ranks_on_host = 1;  ///< of this rank's host
  int rank_on_host = 0;
  int num_hosts = 1;
  int cores_on_host = 1;        ///< usable by this job (affinity mask, cgroup)
  bool oversubscribed = false;  ///< more ranks than cores on some host; the same on all ranks
};
Placement find_placement(const Communicator& comm);

/// Error(environment) when a launcher or scheduler started n > 1 tasks but MPI sees one rank
/// (OB-120). TESSERA_ALLOW_SINGLETON=1 in the environment says that one rank is meant.
void check_launch(const Communicator& comm);

}  // namespace tessera::parallel
