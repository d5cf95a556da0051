// SPDX-License-Identifier: Apache-2.0
// A small job that misbehaves on request; parallel_faults.sh checks how it ends.
// Usage: parallel_faults MODE [SECONDS]: ok | agreed | throw | memory | kill | hang | stop
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "drivers/common/main.hpp"
#include "parallel/watchdog.hpp"

namespace {

using tessera::Error;
using tessera::Exit;
using tessera::parallel::Communicator;

/// 200 rounds around the ring; rank `faulty` sends itself `signal` in the middle.
void rounds(Communicator& world, double seconds, int signal) {
  using namespace std::chrono_literals;
  const int n = world.size(), r = world.rank(), faulty = n - 1;
  const int before = (r + n - 1) % n, next = (r + 1) % n;
  tessera::parallel::Watchdog watchdog(seconds, "[rank " + std::to_string(r) + "]");
  for (int i = 0; i < 200; ++i) {
    if (i == 20 && r == faulty && signal != 0) std::raise(signal);
    int in = -1;
    tessera::parallel::RequestSet set;
    world.irecv(set, &in, 4, before, 0);
    world.isend(set, &i, 4, next, 0, 0);
    const std::string waiting = "round " + std::to_string(i) + ": " + set.describe();
    watchdog.describe([waiting] { return waiting; });
    while (!set.test()) std::this_thread::sleep_for(1ms);
    if (in != i) throw Error(Exit::invalid, "round " + std::to_string(i) + " got another value");
    watchdog.beat();
  }
}

int body(Communicator& world, const std::string& mode, double seconds) {
  const bool last = world.rank() == world.size() - 1;
  if (mode == "agreed") {
    tessera::parallel::together(world, [&] {
      if (last) throw Error(Exit::io, "cannot read slab", "look at the file");
    });
  }
  if (mode == "throw" && last) throw Error(Exit::numerical, "NaN in tile 3");
  if (mode == "memory" && last) throw std::bad_alloc();
  if (mode == "stop") {
    while (!tessera::drivers::stop_requested()) std::this_thread::yield();
    std::printf("asked to stop\n");
    std::fflush(stdout);
    if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return static_cast<int>(Exit::requeue);
  }
  rounds(world, seconds, mode == "kill" ? SIGKILL : mode == "hang" ? SIGSTOP : 0);
  if (world.rank() == 0) std::printf("done on %d ranks\n", world.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "ok";
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0;
  return tessera::drivers::guarded_main(
      argc, argv, [&](Communicator& world) { return body(world, mode, seconds); });
}
