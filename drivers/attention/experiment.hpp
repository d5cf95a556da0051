// SPDX-License-Identifier: Apache-2.0
// The attention experiment from command line to exit code.
#pragma once

#include "parallel/communicator.hpp"

namespace tessera::drivers {

int run_attention(int argc, char** argv, parallel::Communicator& world);

}  // namespace tessera::drivers
