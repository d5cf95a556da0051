// SPDX-License-Identifier: Apache-2.0
// A library with NCCL's calls over MPI and host memory: messages of a pair match in the order of
// issue as NCCL's do, calls on a communicator take a while, and faults can be asked for.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "parallel/nccl_api.hpp"
#include "validation/mpi/test_main.hpp"

namespace tessera::test {

/// What the fake counts, and how it should fail. One for the process.
struct FakeNccl {
  int created = 0, finalized = 0, destroyed = 0, aborted = 0, groups = 0, calls = 0;
  std::size_t largest = 0;    ///< most calls of one group
  std::vector<int> channels;  ///< of every communicator
  bool answers = true;        ///< false: other ranks never answer
  ncclResult_t state = ncclSuccess;
  int version = 22809;
};
inline FakeNccl fake;

/// Stands behind ncclComm_t.
struct FakeLink {
  int number = 0, busy = 0;
};
struct FakeCall {
  enum { send, recv, sum } kind;
  void* data;
  std::size_t count;
  int peer;
  FakeLink* link;
  MPI_Datatype type;
};
inline std::vector<FakeCall> fake_calls;

inline FakeLink* link_of(ncclComm_t comm) { return reinterpret_cast<FakeLink*>(comm); }

inline ncclResult_t fake_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                              ncclConfig_t* config) {
  EXPECT_EQ(ranks, world().size());
  EXPECT_EQ(rank, world().rank());
  EXPECT_EQ(config->blocking, 0);
  EXPECT_EQ(config->minCTAs, config->maxCTAs);
  EXPECT_EQ(id.internal[0], static_cast<char>('a' + fake.created)) << "the id of rank 0";
  fake.channels.push_back(config->maxCTAs);
  *comm = reinterpret_cast<ncclComm_t>(new FakeLink{fake.created++, 3});
  return ncclInProgress;
}

inline ncclResult_t fake_async(ncclComm_t comm, ncclResult_t* state) {
  FakeLink* link = link_of(comm);
  *state = !fake.answers || link->busy > 0 ? ncclInProgress : fake.state;
  if (link->busy > 0) --link->busy;
  return ncclSuccess;
}

inline void run_fake(const FakeCall& c, std::vector<MPI_Request>& requests) {
  const MPI_Comm comm = world().handle();
  const int n = static_cast<int>(c.count), tag = 100 + c.link->number;
  MPI_Request request = MPI_REQUEST_NULL;
  if (c.kind == FakeCall::send)
    MPI_Isend(c.data, n, c.type, c.peer, tag, comm, &request);
  else if (c.kind == FakeCall::recv)
    MPI_Irecv(c.data, n, c.type, c.peer, tag, comm, &request);
  else
    MPI_Allreduce(MPI_IN_PLACE, c.data, n, c.type, MPI_SUM, comm);
  requests.push_back(request);
}

inline ncclResult_t fake_end() {
  ++fake.groups;
  fake.largest = std::max(fake.largest, fake_calls.size());
  std::vector<MPI_Request> requests;
  for (const FakeCall& c : fake_calls) {
    run_fake(c, requests);
    c.link->busy = 2;
    ++fake.calls;
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  fake_calls.clear();
  return ncclInProgress;
}

inline ncclResult_t fake_close(ncclComm_t comm, int& count) {
  delete link_of(comm);
  ++count;
  return ncclSuccess;
}

inline parallel::NcclApi fake_api() {
  parallel::NcclApi api;
  api.get_version = [](int* v) { return *v = fake.version, ncclSuccess; };
  api.get_unique_id = [](ncclUniqueId* id) {
    std::memset(id, 'a' + fake.created, sizeof *id);
    return ncclSuccess;
  };
  api.init_rank = fake_init;
  api.async_error = fake_async;
  api.last_error = [](ncclComm_t) { return "the cable is out"; };
  api.group_start = [] { return ncclSuccess; };
  api.group_end = fake_end;
  api.send = [](const void* data, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                cudaStream_t) {
    EXPECT_EQ(type, ncclUint8);
    fake_calls.push_back(
        {FakeCall::send, const_cast<void*>(data), n, peer, link_of(comm), MPI_BYTE});
    return ncclSuccess;
  };
  api.recv = [](void* data, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                cudaStream_t) {
    EXPECT_EQ(type, ncclUint8);
    fake_calls.push_back({FakeCall::recv, data, n, peer, link_of(comm), MPI_BYTE});
    return ncclSuccess;
  };
  api.all_reduce = [](const void* from, void* to, std::size_t n, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
    EXPECT_EQ(from, to);
    EXPECT_EQ(op, ncclSum);
    fake_calls.push_back(
        {FakeCall::sum, to, n, -1, link_of(comm), type == ncclFloat64 ? MPI_DOUBLE : MPI_FLOAT});
    return ncclSuccess;
  };
  api.finalize = [](ncclComm_t) { return ++fake.finalized, ncclInProgress; };
  api.destroy = [](ncclComm_t comm) { return fake_close(comm, fake.destroyed); };
  api.abort = [](ncclComm_t comm) { return fake_close(comm, fake.aborted); };
  return api;
}

}  // namespace tessera::test
