// SPDX-License-Identifier: Apache-2.0
// A build without nccl.h: the transport is refused by name, on all ranks alike.
#include "parallel/nccl.hpp"
#include "parallel/transport.hpp"

namespace tessera::parallel {

std::string describe_nccl() { return "none: this build has no NCCL"; }

std::unique_ptr<Transport> make_nccl(Communicator&, int) {
  throw AgreedError(
      Error(Exit::environment, "transport \"nccl\": this build has no NCCL",
            "configure with -DTESSERA_CUDA=ON where nccl.h is found, or set parallel.transport to "
            "\"peer\" or \"staged\""));
}

}  // namespace tessera::parallel
