// SPDX-License-Identifier: Apache-2.0
#include "parallel/transport.hpp"

#include <fmt/format.h>

#include "base/log.hpp"

namespace tessera::parallel {

namespace {

Error shared_device_error() {
  return Error(Exit::environment,
               "parallel.transport = \"nccl\": NCCL refuses ranks that share a GPU",
               "start one rank per GPU, or set parallel.transport to \"peer\" or \"staged\"");
}

/// Nothing, and a line in the log, where a way does not work here; all ranks see the same Error.
template <class Make>
std::unique_ptr<Transport> attempt(const char* name, Make make) {
  try {
    return make();
  } catch (const Error& e) {
    if (e.code() != Exit::environment) throw;
    log::info("parallel.transport = \"auto\": not \"{}\": {}", name, e.message());
    return nullptr;
  }
}

std::unique_ptr<Transport> first_that_works(Communicator& comm, const TransportOptions& options) {
  std::unique_ptr<Transport> found;
  if (!options.shared_device)
    found = attempt("nccl", [&] { return make_nccl(comm, options.nccl_channels); });
  if (!found) found = attempt("peer", [&] { return make_peer(comm); });
  return found ? std::move(found) : make_staged(comm);
}

}  // namespace

std::unique_ptr<Transport> make_transport(Communicator& comm, const TransportOptions& options) {
  if (options.name == "auto") return first_that_works(comm, options);
  if (options.name == "peer") return make_peer(comm);
  if (options.name == "staged") return make_staged(comm);
  if (options.name != "nccl") {
    throw AgreedError(Error(
        Exit::usage, fmt::format("parallel.transport = \"{}\": no such transport", options.name),
        "auto, nccl, peer or staged"));
  }
  if (options.shared_device) throw AgreedError(shared_device_error());
  return make_nccl(comm, options.nccl_channels);
}

}  // namespace tessera::parallel
