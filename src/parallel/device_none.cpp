// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: no rank gets a GPU.
#include "parallel/device.hpp"

namespace tessera::parallel {

Device choose_device(const Communicator&, const Placement&, bool) {
  throw AgreedError(Error(Exit::environment, "parallel.device = \"cuda\": this build has no CUDA",
                          "configure with -DTESSERA_CUDA=ON, or set parallel.device = \"host\""));
}

}  // namespace tessera::parallel
