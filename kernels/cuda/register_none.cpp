// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: the backends are not there, and programs need no second path.
#include "kernels/cuda/register.hpp"
#include "kernels/cuda/version.hpp"

namespace tessera::kernels {

void register_cuda(ops::Registry&, Budget&) {}

std::string cuda::describe_cuda() { return "not in this build (configure with -DTESSERA_CUDA=ON)"; }

}  // namespace tessera::kernels
