// SPDX-License-Identifier: Apache-2.0
// The NCCL library as a table of the few functions that are used. It is opened at run time: a
// program built where nccl.h is also starts where the library is not. Tests fill the table with
// functions of their own.
#pragma once

#include <nccl.h>

#include <memory>
#include <string>

#include "parallel/transport.hpp"

namespace tessera::parallel {

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
};

/// libnccl.so.2 where the loader looks for it (LD_LIBRARY_PATH); opened once and kept.
/// Error(environment) with the loader's text.
const NcclApi& nccl_api();

/// "ncclSystemError": the name of a result, as the manual has it.
std::string name_of(ncclResult_t result);
/// "2.28.9" of NCCL_VERSION_CODE 22809; the code of before 2.9 had one digit for the minor number.
std::string nccl_version_text(int code);

struct NcclSettings {
  int channels = 0;        ///< as TransportOptions::nccl_channels
  double patience_s = 60;  ///< for other ranks to make a connection or to start the same unit
  double farewell_s = 5;   ///< for other ranks to close theirs; after that it is aborted
  bool open_ways = true;   ///< exchange a word between those that will talk; needs a device
};

/// make_nccl() of transport.hpp with a given library, which must outlive the transport.
/// Error(environment) unless all ranks have the same version; Error(usage) for channels.
std::unique_ptr<Transport> make_nccl(Communicator& comm, const NcclApi& api,
                                     const NcclSettings& settings);

}  // namespace tessera::parallel
