// SPDX-License-Identifier: Apache-2.0
// Messages by NCCL: one communicator for each comm queue, so that queues do not wait for each
// other; one group for each unit. Communicators do not block: whatever waits for other ranks is
// polled against a time-out, and a rank that fails takes its communicators down.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "memory/buffer.hpp"
#include "memory/stream.hpp"
#include "parallel/nccl_api.hpp"

namespace tessera::parallel {

namespace {

using Clock = std::chrono::steady_clock;
using Kind = Message::Kind;

constexpr const char* debug_hint = "NCCL_DEBUG=INFO in the environment makes NCCL say more";

/// The communicators of a transport, by queue.
class Links {
 public:
  Links(Communicator& comm, const NcclApi& api, const NcclSettings& settings)
      : comm_(comm), api_(api), settings_(settings) {}
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  ~Links() { close(); }

  Communicator& ranks() const { return comm_; }
  const NcclApi& api() const { return api_; }
  const NcclSettings& settings() const { return settings_; }

  /// The communicator of a queue, made when it is not there yet. Collective.
  void connect(int queue);
  ncclComm_t of(int queue) const { return links_.at(queue); }

  /// Waits until what was called on the queue's communicator has been taken over.
  void settle(int queue, ncclResult_t result, const char* call);
  /// Looks for an error that came up since.
  void look(int queue);

 private:
  [[noreturn]] void fail(int queue, const std::string& what);
  /// False: still in progress after `patience_s`.
  bool poll(ncclComm_t link, double patience_s, ncclResult_t& result) const;
  void abort_all() noexcept;
  void close() noexcept;

  Communicator& comm_;
  const NcclApi& api_;
  NcclSettings settings_;
  std::map<int, ncclComm_t> links_;
};

std::string new_id(const Links& links) {
  std::string text(sizeof(ncclUniqueId), '\0');
  together(links.ranks(), [&] {
    if (links.ranks().rank() != 0) return;
    ncclUniqueId id;
    const ncclResult_t result = links.api().get_unique_id(&id);
    if (result != ncclSuccess) {
      throw Error(
          Exit::communication,
          fmt::format("ncclGetUniqueId: {}: {}", name_of(result), links.api().last_error(nullptr)),
          debug_hint);
    }
    std::memcpy(text.data(), &id, sizeof id);
  });
  links.ranks().broadcast(text, 0);
  return text;
}

void Links::connect(int queue) {
  if (links_.contains(queue)) return;
  const std::string text = new_id(*this);
  ncclUniqueId id;
  std::memcpy(&id, text.data(), sizeof id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (settings_.channels > 0) config.minCTAs = config.maxCTAs = settings_.channels;
  ncclComm_t link = nullptr;
  const ncclResult_t result = api_.init_rank(&link, comm_.size(), id, comm_.rank(), &config);
  links_[queue] = link;
  settle(queue, result, "ncclCommInitRankConfig");
}

bool Links::poll(ncclComm_t link, double patience_s, ncclResult_t& result) const {
  const auto end = Clock::now() + std::chrono::duration<double>(patience_s);
  while (result == ncclInProgress) {
    const ncclResult_t asked = api_.async_error(link, &result);
    if (asked != ncclSuccess) result = asked;
    if (result == ncclInProgress && Clock::now() > end) return false;
    // Ranks may share cores with the threads that they wait for.
    if (result == ncclInProgress) std::this_thread::yield();
  }
  return true;
}

void Links::settle(int queue, ncclResult_t result, const char* call) {
  if (!poll(of(queue), settings_.patience_s, result)) {
    fail(queue,
         fmt::format("{}: no answer from the other ranks for {} s", call, settings_.patience_s));
  }
  if (result != ncclSuccess) fail(queue, fmt::format("{}: {}", call, name_of(result)));
}

void Links::look(int queue) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_.async_error(of(queue), &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) {
    fail(queue, fmt::format("while messages were moving: {}", name_of(state)));
  }
}

void Links::fail(int queue, const std::string& what) {
  const char* last = api_.last_error(of(queue));
  const std::string more = last && *last ? fmt::format(" ({})", last) : "";
  abort_all();
  throw Error(Exit::communication,
              fmt::format("NCCL on rank {} of {} ({}), comm queue {}: {}{}", comm_.rank(),
                          comm_.size(), host_name(), queue, what, more),
              debug_hint);
}

void Links::abort_all() noexcept {
  for (const auto& [queue, link] : links_) {
    if (link) api_.abort(link);
  }
  links_.clear();
}

void Links::close() noexcept {
  // With an exception on its way other ranks may never come to close their side.
  if (std::uncaught_exceptions() > 0) return abort_all();
  for (const auto& [queue, link] : links_) {
    ncclResult_t result = api_.finalize(link);
    const bool quiet = poll(link, settings_.farewell_s, result) && result == ncclSuccess;
    quiet ? api_.destroy(link) : api_.abort(link);
  }
  links_.clear();
}

/// NCCL matches the messages of a pair in the order of issue, so both sides issue by tag. Empty
/// ones are left out on both sides.
MessageUnit ordered(MessageUnit unit) {
  std::erase_if(unit.messages, [](const Message& m) { return m.count == 0; });
  std::stable_sort(unit.messages.begin(), unit.messages.end(),
                   [](const Message& a, const Message& b) {
                     return std::pair(a.peer, a.tag) < std::pair(b.peer, b.tag);
                   });
  return unit;
}

/// Most messages of one NCCL group; larger ones may be cut differently on the two sides (OB-101).
constexpr std::size_t most_in_group = 256;

/// A unit as groups of at most that many messages: the i-th message between two ranks is in the
/// same group on both sides, since the number of one pair's messages in a group is the same
/// everywhere.
std::vector<std::vector<Message>> rounds_of(const MessageUnit& unit, int num_ranks) {
  const std::size_t of_pair =
      std::max<std::size_t>(1, most_in_group / (2 * static_cast<std::size_t>(num_ranks)));
  std::vector<std::vector<Message>> rounds;
  std::map<std::pair<Kind, int>, std::size_t> seen;
  for (const Message& m : unit.messages) {
    const std::size_t round = seen[{m.kind, m.peer}]++ / of_pair;
    if (round >= rounds.size()) rounds.resize(round + 1);
    rounds[round].push_back(m);
  }
  return rounds;
}

bool leaves(const Message& m, int rank) { return m.kind == Kind::send && m.peer != rank; }

class NcclRoute : public Route {
 public:
  NcclRoute(Links& links, std::vector<MessageUnit> units) : links_(links) {
    for (MessageUnit& unit : units) units_.push_back(ordered(std::move(unit)));
  }

  /// Connects the queues of any rank, compares what the ranks mean to send, and opens the ways
  /// between those that talk: otherwise that would happen inside the first pass.
  void prepare(Budget& budget);

  void start(std::size_t index, void* stream) override {
    const MessageUnit& unit = units_.at(index);
    for (const std::vector<Message>& round : rounds_of(unit, ranks().size()))
      group(unit.queue, [&](ncclComm_t link) {
        ncclResult_t result = ncclSuccess;
        for (const Message& m : round) result = worse(result, issue(m, link, stream));
        return result;
      });
    for (const Message& m : unit.messages) {
      const bool counts =
          m.kind == Kind::all_reduce ? ranks().size() > 1 : leaves(m, ranks().rank());
      if (counts) ranks().count(m.axis, m.bytes());
    }
  }

  void progress() override {
    for (const int queue : queues_) links_.look(queue);
  }

 private:
  Communicator& ranks() const { return links_.ranks(); }
  /// The first result that is not good; ncclInProgress is settled when the group ends.
  static ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
    const bool bad = b != ncclSuccess && b != ncclInProgress;
    return a == ncclSuccess && bad ? b : a;
  }
  ncclResult_t issue(const Message& m, ncclComm_t link, void* stream) const;

  /// One NCCL group on a queue. `body` returns its worst result; the group is ended in any case.
  template <class Body>
  void group(int queue, Body body) {
    const NcclApi& api = links_.api();
    ncclResult_t result = api.group_start();
    result = worse(result, body(links_.of(queue)));
    const ncclResult_t end = api.group_end();
    links_.settle(queue, result == ncclSuccess ? end : result, "ncclGroup");
  }
  /// A number that is equal for what `from` sends to `to` on a queue and what `to` expects.
  std::uint64_t fingerprint(int queue, Kind kind, int peer) const;
  void compare();
  void open_ways(int queue, Budget& budget);

  Links& links_;
  std::vector<MessageUnit> units_;
  std::vector<int> queues_;  // of any rank, ascending
};

ncclResult_t NcclRoute::issue(const Message& m, ncclComm_t link, void* stream) const {
  const auto s = static_cast<cudaStream_t>(stream);
  const auto bytes = static_cast<std::size_t>(m.bytes());
  const NcclApi& api = links_.api();
  switch (m.kind) {
    case Kind::send:
      return api.send(m.data, bytes, ncclUint8, m.peer, link, s);
    case Kind::recv:
      return api.recv(m.data, bytes, ncclUint8, m.peer, link, s);
    case Kind::all_reduce:
      break;
  }
  const ncclDataType_t type = m.dtype == DType::f64 ? ncclFloat64 : ncclFloat32;
  return api.all_reduce(m.data, m.data, static_cast<std::size_t>(m.count), type, ncclSum, link, s);
}

std::uint64_t NcclRoute::fingerprint(int queue, Kind kind, int peer) const {
  std::uint64_t sum = 0xcbf29ce484222325u;  // FNV-1a over words
  const auto add = [&](std::int64_t word) {
    sum = (sum ^ static_cast<std::uint64_t>(word)) * 0x100000001b3u;
  };
  for (const MessageUnit& unit : units_) {
    if (unit.queue != queue) continue;
    for (const Message& m : unit.messages) {
      const bool all = m.kind == Kind::all_reduce;
      if (!all && (m.kind != kind || m.peer != peer)) continue;
      add(all ? -1 : m.tag);
      add(m.bytes());
    }
  }
  return sum;
}

void NcclRoute::compare() {
  const auto n = static_cast<std::size_t>(ranks().size());
  const auto me = static_cast<std::size_t>(ranks().rank());
  std::vector<std::uint64_t> mine;  // [queue, peer]
  for (const int queue : queues_) {
    for (std::size_t p = 0; p < n; ++p) {
      mine.push_back(fingerprint(queue, Kind::send, static_cast<int>(p)));
    }
  }
  const auto bytes = ranks().all_gather_bytes(std::as_bytes(std::span(mine)));
  std::vector<std::uint64_t> all(bytes.size() / sizeof(std::uint64_t));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  together(ranks(), [&] {
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      for (std::size_t p = 0; p < n; ++p) {
        const std::uint64_t sent = all[p * mine.size() + q * n + me];
        if (sent == fingerprint(queues_[q], Kind::recv, static_cast<int>(p))) continue;
        throw Error(Exit::communication,
                    fmt::format("comm queue {}: what rank {} sends to rank {} is not what rank {} "
                                "receives from it, in this order: NCCL would wait for ever",
                                queues_[q], p, me, me),
                    "check the program of the scheme; parallel.transport = \"staged\" does not "
                    "need one order on both sides");
      }
    }
  });
}

void NcclRoute::open_ways(int queue, Budget& budget) {
  std::vector<std::pair<Kind, int>> ways;  // sends and receives of all units, each peer once
  for (const MessageUnit& unit : units_) {
    if (unit.queue != queue) continue;
    for (const Message& m : unit.messages) {
      if (m.kind != Kind::all_reduce) ways.emplace_back(m.kind, m.peer);
    }
  }
  std::sort(ways.begin(), ways.end());
  ways.erase(std::unique(ways.begin(), ways.end()), ways.end());
  if (ways.empty()) return;
  const Buffer out(budget, 8, "NCCL connections", Space::cuda);
  const Buffer in(budget, 8, "NCCL connections", Space::cuda);
  const memory::Stream stream;
  const auto s = static_cast<cudaStream_t>(stream.handle());
  group(queue, [&](ncclComm_t link) {
    ncclResult_t result = ncclSuccess;
    for (const auto& [kind, peer] : ways) {
      result = worse(result, kind == Kind::send
                                 ? links_.api().send(out.data(), 8, ncclUint8, peer, link, s)
                                 : links_.api().recv(in.data(), 8, ncclUint8, peer, link, s));
    }
    return result;
  });
  const memory::Event end;
  end.record(stream.handle());
  while (!end.done()) progress();
}

void NcclRoute::prepare(Budget& budget) {
  std::int64_t most = -1;
  for (const MessageUnit& unit : units_) most = std::max<std::int64_t>(most, unit.queue);
  most = ranks().all_reduce_max(most);
  for (int queue = 0; queue <= most; ++queue) {
    const bool used = std::any_of(units_.begin(), units_.end(), [&](const MessageUnit& u) {
      return u.queue == queue && !u.messages.empty();
    });
    if (ranks().all_reduce_max(std::int64_t{used}) == 1) queues_.push_back(queue);
  }
  compare();
  for (const int queue : queues_) links_.connect(queue);
  if (!links_.settings().open_ways) return;
  for (const int queue : queues_) open_ways(queue, budget);
}

class NcclTransport : public Transport {
 public:
  NcclTransport(Communicator& comm, const NcclApi& api, const NcclSettings& settings)
      : links_(comm, api, settings) {}
  std::string_view name() const override { return "nccl"; }
  /// Kernels of two communicators may each hold on one rank what the other one needs on another,
  /// and wait for ever (OB-102). NCCL 2.26 can order them itself (NCCL_LAUNCH_ORDER_IMPLICIT), but
  /// cuGraphUpload of such launches crashed where that was tried (NCCL 2.28, driver 580, MPS).
  bool one_at_a_time() const override { return true; }
  std::unique_ptr<Route> open(std::vector<MessageUnit> units, Budget& budget) override {
    auto route = std::make_unique<NcclRoute>(links_, std::move(units));
    route->prepare(budget);
    return route;
  }

 private:
  Links links_;
};

void require_one_version(const Communicator& comm, const NcclApi& api) {
  int mine = 0;
  together(comm, [&] {
    const ncclResult_t result = api.get_version(&mine);
    if (result != ncclSuccess)
      throw Error(Exit::environment, "ncclGetVersion: " + name_of(result), debug_hint);
  });
  const auto all = comm.all_gather(std::int64_t{mine});
  for (int r = 1; r < comm.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw AgreedError(Error(
        Exit::environment,
        fmt::format("rank 0 has NCCL {}, rank {} has NCCL {}",
                    nccl_version_text(static_cast<int>(all[0])), r,
                    nccl_version_text(static_cast<int>(all[r]))),
        "let LD_LIBRARY_PATH name the same libnccl.so.2 on all hosts (mpirun -x LD_LIBRARY_PATH)"));
  }
}

}  // namespace

std::unique_ptr<Transport> make_nccl(Communicator& comm, const NcclApi& api,
                                     const NcclSettings& settings) {
  if (settings.channels < 0 || settings.channels > 64) {
    throw AgreedError(Error(Exit::usage,
                            fmt::format("parallel.nccl_channels = {}", settings.channels),
                            "0 for NCCL's own choice, or 1 to 64"));
  }
  require_one_version(comm, api);
  return std::make_unique<NcclTransport>(comm, api, settings);
}

std::unique_ptr<Transport> make_nccl(Communicator& comm, int channels) {
  const NcclApi* api = nullptr;
  together(comm, [&] { api = &nccl_api(); });
  NcclSettings settings;
  settings.channels = channels;
  return make_nccl(comm, *api, settings);
}

}  // namespace tessera::parallel
