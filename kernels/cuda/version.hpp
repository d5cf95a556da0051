// SPDX-License-Identifier: Apache-2.0
// Which CUDA this build has and whether the machine's driver can run it.
#pragma once

#include <string>

namespace tessera::kernels::cuda {

/// "13.0 (driver: CUDA 13.0)", why no device can be used, or that this build has none.
std::string describe_cuda();

}  // namespace tessera::kernels::cuda
