// SPDX-License-Identifier: Apache-2.0
#include "parallel/nccl_api.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "parallel/nccl.hpp"

namespace tessera::parallel {

namespace {

constexpr const char* library = "libnccl.so.2";

template <class F>
void resolve(void* opened, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(opened, name));
  if (function) return;
  throw Error(Exit::environment, fmt::format("{} has no function {}", library, name),
              "NCCL 2.18 or newer is needed; LD_LIBRARY_PATH says which one is found first");
}

NcclApi open_library() {
  // Never closed: NCCL's threads may outlive the last communicator.
  void* opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    const char* why = dlerror();
    throw Error(Exit::environment,
                fmt::format("cannot open the NCCL library: {}", why ? why : library),
                "add its folder to LD_LIBRARY_PATH, or set parallel.transport to \"peer\" or "
                "\"staged\"");
  }
  NcclApi api;
  resolve(opened, "ncclGetVersion", api.get_version);
  resolve(opened, "ncclGetUniqueId", api.get_unique_id);
  resolve(opened, "ncclCommInitRankConfig", api.init_rank);
  resolve(opened, "ncclCommFinalize", api.finalize);
  resolve(opened, "ncclCommDestroy", api.destroy);
  resolve(opened, "ncclCommAbort", api.abort);
  resolve(opened, "ncclCommGetAsyncError", api.async_error);
  resolve(opened, "ncclGetLastError", api.last_error);
  resolve(opened, "ncclGroupStart", api.group_start);
  resolve(opened, "ncclGroupEnd", api.group_end);
  resolve(opened, "ncclSend", api.send);
  resolve(opened, "ncclRecv", api.recv);
  resolve(opened, "ncclAllReduce", api.all_reduce);
  return api;
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api = open_library();
  return api;
}

std::string name_of(ncclResult_t result) {
  constexpr std::array names{"ncclSuccess",       "ncclUnhandledCudaError", "ncclSystemError",
                             "ncclInternalError", "ncclInvalidArgument",    "ncclInvalidUsage",
                             "ncclRemoteError",   "ncclInProgress"};
  const auto index = static_cast<std::size_t>(result);
  return index < names.size() ? names[index] : fmt::format("NCCL result {}", index);
}

std::string nccl_version_text(int code) {
  const int major = code / (code < 10000 ? 1000 : 10000);
  const int minor = code / 100 % (code < 10000 ? 10 : 100);
  return fmt::format("{}.{}.{}", major, minor, code % 100);
}

std::string describe_nccl() {
  try {
    int code = 0;
    const ncclResult_t result = nccl_api().get_version(&code);
    return result == ncclSuccess ? nccl_version_text(code) : "none: " + name_of(result);
  } catch (const Error& e) {
    return "none: " + e.message();
  }
}

}  // namespace tessera::parallel
