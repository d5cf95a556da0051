// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: no rank has device buffers to send.
#include "parallel/transport.hpp"

namespace tessera::parallel {

namespace {

[[noreturn]] void refuse() {
  throw Error(Exit::environment, "messages between GPUs: this build has no CUDA",
              "configure with -DTESSERA_CUDA=ON, or set parallel.device = \"host\"");
}

}  // namespace

std::unique_ptr<Transport> make_transport(Communicator&, const TransportOptions&) { refuse(); }
std::unique_ptr<Transport> make_throttled(std::unique_ptr<Transport>, double) { refuse(); }

}  // namespace tessera::parallel
