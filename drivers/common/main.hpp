// SPDX-License-Identifier: Apache-2.0
// What every `main` does around its work: guards for MPI and Kokkos in the right order, exceptions
// into messages and exit codes without leaving a rank waiting, signals into a polite request.
#pragma once

#include <functional>

#include "parallel/communicator.hpp"

namespace tessera::drivers {

/// Runs `body` on every rank between MPI and Kokkos guards and returns the process's exit code.
/// AgreedError: rank 0 prints, all ranks return its code. Any other exception belongs to one rank:
/// it prints "[rank r host]" and its message and takes the job down with its code.
int guarded_main(int argc, char** argv, const std::function<int(parallel::Communicator&)>& body);

/// The same for programs without ranks: no MPI, no Kokkos.
int guarded_serial_main(const std::function<int()>& body);

/// True after SIGTERM, SIGINT or SIGUSR1 (batch systems announce a time limit by one of them).
/// Ranks learn of it at different times: all_reduce it before acting. A second SIGTERM or SIGINT
/// ends the process at once.
bool stop_requested();

}  // namespace tessera::drivers
