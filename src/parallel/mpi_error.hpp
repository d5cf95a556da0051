// SPDX-License-Identifier: Apache-2.0
// MPI return codes as Error(communication), with MPI's own text and both ranks.
#pragma once

#include <mpi.h>

#include <string>

#include "base/error.hpp"

namespace tessera::parallel {

/// MPI's text for a return code.
std::string mpi_text(int code);

/// Error of `call` on `rank` of the communicator named `comm`; peer < 0: no single peer.
Error mpi_error(int code, const char* call, const std::string& comm, int rank, int peer);

}  // namespace tessera::parallel
