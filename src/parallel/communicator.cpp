// SPDX-License-Identifier: Apache-2.0
// Communicator over MPI 3.1: duplicated, named, errors returned and turned into Error. Counts are
// int in MPI 3.1, so everything larger is cut here and nowhere else.
#include "parallel/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "parallel/mpi_error.hpp"

namespace tessera::parallel {

World::World(int& argc, char**& argv) {
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  if (code != MPI_SUCCESS)
    throw Error(Exit::environment, "MPI_Init_thread failed: " + mpi_text(code));
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(Exit::environment, "this MPI library offers no MPI_THREAD_FUNNELED",
                "use an MPI built with thread support; the watchdog runs in a thread");
  }
}

World::~World() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) MPI_Finalize();
}

Communicator::Communicator(MPI_Comm parent, const std::string& name, std::int64_t piece_bytes)
    : name_(name), piece_bytes_(piece_bytes) {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_rank(parent, &rank_);
  check(MPI_Comm_dup(parent, &comm), "MPI_Comm_dup");
  comm_ = std::shared_ptr<MPI_Comm>(new MPI_Comm(comm), [](MPI_Comm* c) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Comm_free(c);
    delete c;
  });
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  MPI_Comm_set_name(comm, name.c_str());
  MPI_Comm_size(comm, &size_);
  int* tag_limit = nullptr;
  int found = 0;
  MPI_Comm_get_attr(comm, MPI_TAG_UB, &tag_limit, &found);
  if (found) max_tag_ = *tag_limit - 1;
}

MPI_Comm Communicator::handle() const { return *comm_; }

void Communicator::check(int code, const char* call) const {
  if (code != MPI_SUCCESS) throw mpi_error(code, call, name_, rank_, -1);
}

void Communicator::count(int axis, std::int64_t bytes) {
  if (axis < 0) {
    control_bytes_ += bytes;
    return;
  }
  if (axis >= static_cast<int>(bytes_sent_.size())) bytes_sent_.resize(axis + 1, 0);
  bytes_sent_[axis] += bytes;
}

void Communicator::count_control(std::int64_t bytes) const {
  if (size_ > 1) control_bytes_ += bytes;
}

std::int64_t Communicator::bytes_sent(int axis) const {
  return axis >= 0 && axis < static_cast<int>(bytes_sent_.size()) ? bytes_sent_[axis] : 0;
}

void Communicator::reset_counters() {
  bytes_sent_.clear();
  control_bytes_ = 0;
}

void Communicator::isend(RequestSet& set, const void* data, std::int64_t bytes, int peer, int tag,
                         int axis) {
  const char* at = static_cast<const char*>(data);
  for (const std::int64_t piece : pieces(bytes, piece_bytes_)) {
    const int n = static_cast<int>(piece);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(at, n, MPI_BYTE, peer, tag, *comm_, &request);
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Isend", name_, rank_, peer);
    set.requests_.push_back(request);
    set.items_.push_back({false, rank_, peer, tag, n});
    at += piece;
  }
  count(axis, peer == rank_ ? 0 : bytes);
}

void Communicator::irecv(RequestSet& set, void* data, std::int64_t bytes, int peer, int tag) {
  char* at = static_cast<char*>(data);
  for (const std::int64_t piece : pieces(bytes, piece_bytes_)) {
    const int n = static_cast<int>(piece);
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Irecv(at, n, MPI_BYTE, peer, tag, *comm_, &request);
    if (code != MPI_SUCCESS) throw mpi_error(code, "MPI_Irecv", name_, rank_, peer);
    set.requests_.push_back(request);
    set.items_.push_back({true, rank_, peer, tag, n});
    at += piece;
  }
}

void Communicator::barrier() const { check(MPI_Barrier(*comm_), "MPI_Barrier"); }

void Communicator::broadcast(std::string& text, int root) const {
  std::int64_t bytes = static_cast<std::int64_t>(text.size());
  broadcast(std::span(&bytes, 1), root);
  text.resize(bytes);
  char* at = text.data();
  for (const std::int64_t piece : pieces(bytes, piece_bytes_)) {
    check(MPI_Bcast(at, static_cast<int>(piece), MPI_BYTE, root, *comm_), "MPI_Bcast");
    at += piece;
  }
  if (rank_ == root) count_control(bytes);
}

void Communicator::broadcast(std::span<std::int64_t> values, int root) const {
  const int n = static_cast<int>(values.size());
  check(MPI_Bcast(values.data(), n, MPI_INT64_T, root, *comm_), "MPI_Bcast");
  if (rank_ == root) count_control(static_cast<std::int64_t>(values.size_bytes()));
}

std::vector<std::int64_t> Communicator::all_gather(std::int64_t value) const {
  std::vector<std::int64_t> all(size_);
  check(MPI_Allgather(&value, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, *comm_), "MPI_Allgather");
  count_control(sizeof value);
  return all;
}

std::vector<double> Communicator::all_gather(double value) const {
  std::vector<double> all(size_);
  check(MPI_Allgather(&value, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, *comm_), "MPI_Allgather");
  count_control(sizeof value);
  return all;
}

std::vector<std::string> Communicator::gather(const std::string& text, int root) const {
  // Point to point rather than MPI_Gatherv: its displacements are int, and traces get large.
  const int tag = max_tag_ + 1;
  const std::vector<std::int64_t> bytes = all_gather(static_cast<std::int64_t>(text.size()));
  Communicator wire = *this;  // counts of this copy are dropped, the payload is counted as control
  RequestSet set;
  std::vector<std::string> all;
  if (rank_ == root) {
    all.resize(size_);
    for (int r = 0; r < size_; ++r) {
      all[r].resize(bytes[r]);
      if (r == root)
        all[r] = text;
      else
        wire.irecv(set, all[r].data(), bytes[r], r, tag);
    }
  } else {
    wire.isend(set, text.data(), bytes[rank_], root, tag, control_axis);
    count_control(bytes[rank_]);
  }
  set.wait();
  return all;
}

std::vector<std::byte> Communicator::all_gather_bytes(std::span<const std::byte> mine) const {
  const std::int64_t bytes = static_cast<std::int64_t>(mine.size());
  if (bytes > max_message_bytes) {
    throw Error(Exit::communication,
                fmt::format("all_gather_bytes: {} bytes per rank, at most {} fit", bytes,
                            max_message_bytes));
  }
  const int n = static_cast<int>(bytes);
  std::vector<std::byte> all(mine.size() * size_);
  check(MPI_Allgather(mine.data(), n, MPI_BYTE, all.data(), n, MPI_BYTE, *comm_), "MPI_Allgather");
  count_control(bytes);
  return all;
}

template <class T>
void Communicator::reduce_in_pieces(std::span<T> values, MPI_Datatype type) const {
  T* at = values.data();
  const std::int64_t limit = std::max<std::int64_t>(piece_bytes_ / sizeof(T), 1);
  for (const std::int64_t n : pieces(static_cast<std::int64_t>(values.size()), limit)) {
    check(MPI_Allreduce(MPI_IN_PLACE, at, static_cast<int>(n), type, MPI_SUM, *comm_),
          "MPI_Allreduce");
    at += n;
  }
}

void Communicator::all_reduce_sum(std::span<double> values) const {
  reduce_in_pieces(values, MPI_DOUBLE);
  count_control(static_cast<std::int64_t>(values.size_bytes()));
}

void Communicator::all_reduce_sum(std::span<float> values, int axis) {
  reduce_in_pieces(values, MPI_FLOAT);
  count(axis, size_ > 1 ? static_cast<std::int64_t>(values.size_bytes()) : 0);
}

void Communicator::all_reduce_sum(std::span<double> values, int axis) {
  reduce_in_pieces(values, MPI_DOUBLE);
  count(axis, size_ > 1 ? static_cast<std::int64_t>(values.size_bytes()) : 0);
}

double Communicator::all_reduce_max(double value) const {
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, *comm_), "MPI_Allreduce");
  count_control(sizeof value);
  return value;
}

std::int64_t Communicator::all_reduce_max(std::int64_t value) const {
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MAX, *comm_), "MPI_Allreduce");
  count_control(sizeof value);
  return value;
}

std::int64_t Communicator::all_reduce_min(std::int64_t value) const {
  check(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT64_T, MPI_MIN, *comm_), "MPI_Allreduce");
  count_control(sizeof value);
  return value;
}

std::vector<std::int64_t> pieces(std::int64_t bytes, std::int64_t limit) {
  if (bytes < 0 || limit <= 0) {
    throw Error(Exit::communication,
                fmt::format("cannot cut {} bytes into pieces of {}", bytes, limit));
  }
  std::vector<std::int64_t> all(bytes / limit, limit);
  if (bytes % limit != 0 || bytes == 0) all.push_back(bytes % limit);
  return all;
}

}  // namespace tessera::parallel
