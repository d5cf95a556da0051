// SPDX-License-Identifier: Apache-2.0
#include "exec/clock.hpp"

#include <chrono>

namespace tessera::exec {

namespace {

constexpr int rounds = 12;
constexpr int uncounted = -1;  // axis: clock messages are no traffic of a plan
constexpr int tag = 1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void send(parallel::Communicator& comm, double value, int peer) {
  parallel::RequestSet set;
  comm.isend(set, &value, sizeof value, peer, tag, uncounted);
  set.wait();
}

double receive(parallel::Communicator& comm, int peer) {
  double value = 0;
  parallel::RequestSet set;
  comm.irecv(set, &value, sizeof value, peer, tag);
  set.wait();
  return value;
}

}  // namespace

std::vector<trace::ClockOffset> align_clocks(parallel::Communicator& comm) {
  if (comm.rank() != 0) {
    for (int i = 0; i < rounds; ++i) {
      receive(comm, 0);
      send(comm, now(), 0);
    }
    return {};
  }
  std::vector<trace::ClockOffset> out(1);
  for (int peer = 1; peer < comm.size(); ++peer) {
    std::vector<trace::ClockSample> samples(rounds);
    for (trace::ClockSample& s : samples) {
      s.sent_s = now();
      send(comm, s.sent_s, peer);
      s.remote_s = receive(comm, peer);
      s.received_s = now();
    }
    out.push_back(trace::estimate_offset(samples));
  }
  return out;
}

}  // namespace tessera::exec
