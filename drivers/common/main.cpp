// SPDX-License-Identifier: Apache-2.0
// Guards, exceptions and signals around the work of every program.
#include "drivers/common/main.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <new>
#include <string>

#include "kernels/kokkos/runtime.hpp"

namespace tessera::drivers {

namespace {

volatile std::sig_atomic_t stop_flag = 0;
timespec first_stop = {};  // written by the first signal only, before stop_flag

void on_signal(int signal) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (stop_flag == 0) {
    first_stop = now;
    stop_flag = 1;
    return;
  }
  // Launchers and `timeout` signal both the process and its group: one request, not two.
  const double since = static_cast<double>(now.tv_sec - first_stop.tv_sec) +
                       static_cast<double>(now.tv_nsec - first_stop.tv_nsec) * 1e-9;
  if (signal != SIGUSR1 && since > 0.2) _exit(128 + signal);
}

void catch_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // a request to stop must not break a read or write in progress
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) sigaction(signal, &action, nullptr);
}

/// Must be called inside a catch block; turns what was thrown into an Error.
Error current_error() {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(Exit::environment, "out of memory", "use more ranks or a smaller problem");
  } catch (const std::exception& e) {
    return Error(Exit::environment, std::string("unexpected: ") + e.what());
  }
}

int report(const Error& e, const std::string& place = {}) {
  std::fflush(stdout);
  std::fprintf(stderr, "%serror: %s\n", place.c_str(), e.what());
  std::fflush(stderr);
  return static_cast<int>(e.code());
}

int run_on_ranks(parallel::Communicator& world,
                 const std::function<int(parallel::Communicator&)>& body) {
  try {
    parallel::check_launch(world);
    const kernels::KokkosRuntime kokkos;
    catch_signals();
    return body(world);
  } catch (const parallel::AgreedError& e) {
    return world.rank() == 0 ? report(e) : static_cast<int>(e.code());
  } catch (...) {
    const Error e = current_error();
    if (world.size() == 1) return report(e);
    const std::string place =
        "[rank " + std::to_string(world.rank()) + " " + parallel::host_name() + "] ";
    MPI_Abort(MPI_COMM_WORLD, report(e, place));
    return static_cast<int>(e.code());
  }
}

}  // namespace

bool stop_requested() { return stop_flag != 0; }

int guarded_main(int argc, char** argv, const std::function<int(parallel::Communicator&)>& body) {
  try {
    const parallel::World guard(argc, argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    parallel::Communicator world(MPI_COMM_WORLD, "tessera");
    return run_on_ranks(world, body);
  } catch (...) {
    return report(current_error());
  }
}

int guarded_serial_main(const std::function<int()>& body) {
  try {
    catch_signals();
    return body();
  } catch (...) {
    return report(current_error());
  }
}

}  // namespace tessera::drivers
