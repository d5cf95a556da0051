// SPDX-License-Identifier: Apache-2.0
// A build without cuDNN's C++ frontend: the backend is not there.
#include "kernels/cuda/cudnn.hpp"

namespace tessera::kernels::cuda {

std::string describe_cudnn() { return "no cuDNN: built without its C++ frontend"; }
void add_cudnn(ops::Registry&, Budget&) {}

}  // namespace tessera::kernels::cuda
