// SPDX-License-Identifier: Apache-2.0
#include "parallel/transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/log.hpp"
#include "memory/stream.hpp"

namespace tessera::parallel {

namespace {

Error shared_device_error() {
  return Error(Exit::environment,
               "parallel.transport = \"nccl\": NCCL refuses ranks that share a GPU",
               "start one rank per GPU, or set parallel.transport to \"peer\" or \"staged\"");
}

/// Nothing, and a line in the log, where a way does not work here; all ranks see the same Error.
template <class Make>
std::unique_ptr<Transport> attempt(const char* name, Make make) {
  try {
    return make();
  } catch (const Error& e) {
    if (e.code() != Exit::environment) throw;
    log::info("parallel.transport = \"auto\": not \"{}\": {}", name, e.message());
    return nullptr;
  }
}

/// Seconds of a 16 MiB message that every rank sends to the next one, the slowest rank's; 0 with
/// one rank. All ranks get the same number.
double shift_time(Communicator& comm, Transport& transport) {
  constexpr std::int64_t elements = std::int64_t{4} << 20;
  constexpr int calls = 4, rounds = 3;  // the first round connects and does not count
  if (comm.size() == 1) return 0;
  Budget budget;
  const Tensor out = make_tensor(budget, DType::f32, {elements, 1, 1}, "probe", Space::cuda);
  const Tensor in = make_tensor(budget, DType::f32, {elements, 1, 1}, "probe", Space::cuda);
  const int next = (comm.rank() + 1) % comm.size();
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  const auto route = transport.open({{0,
                                      {{Message::Kind::send, out.ref.data, elements, DType::f32,
                                        next, 1, Communicator::control_axis},
                                       {Message::Kind::recv, in.ref.data, elements, DType::f32,
                                        before, 1, Communicator::control_axis}}}},
                                    budget);
  const memory::Stream stream;
  const memory::Event begin(true), end(true);
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    comm.barrier();
    begin.record(stream.handle());
    for (int i = 0; i < calls; ++i) route->start(0, stream.handle());
    end.record(stream.handle());
    while (!end.done()) route->progress();
    if (round > 0) best = std::min(best, memory::Event::seconds_between(begin, end) / calls);
  }
  return comm.all_reduce_max(best);
}

/// NCCL or copy engines, whichever moves a large message faster here; staged where neither works.
std::unique_ptr<Transport> fastest(Communicator& comm, const TransportOptions& options) {
  std::unique_ptr<Transport> nccl;
  if (!options.shared_device)
    nccl = attempt("nccl", [&] { return make_nccl(comm, options.nccl_channels); });
  std::unique_ptr<Transport> peer = attempt("peer", [&] { return make_peer(comm); });
  if (!nccl && !peer) return make_staged(comm);
  if (!nccl || !peer) return nccl ? std::move(nccl) : std::move(peer);
  const double by_nccl = shift_time(comm, *nccl), by_peer = shift_time(comm, *peer);
  if (comm.size() > 1)
    log::info(
        "transport by measurement: 16 MiB to the next rank takes {:.3g} us by nccl, {:.3g} us "
        "by peer",
        by_nccl * 1e6, by_peer * 1e6);
  return by_nccl < by_peer ? std::move(nccl) : std::move(peer);
}

}  // namespace

std::unique_ptr<Transport> make_transport(Communicator& comm, const TransportOptions& options) {
  if (options.name == "auto") return fastest(comm, options);
  if (options.name == "peer") return make_peer(comm);
  if (options.name == "staged") return make_staged(comm);
  if (options.name != "nccl") {
    throw AgreedError(Error(
        Exit::usage, fmt::format("parallel.transport = \"{}\": no such transport", options.name),
        "auto, nccl, peer or staged"));
  }
  if (options.shared_device) throw AgreedError(shared_device_error());
  return make_nccl(comm, options.nccl_channels);
}

}  // namespace tessera::parallel
