// SPDX-License-Identifier: Apache-2.0
// Transport by copy engines between processes of one host: a rank opens the memory of the others
// and copies straight into their buffers. Two words per transfer keep the zero-buffering promise of
// plans: "ready" (the receiver's buffer may be written) and "arrived". Streams write and await them
// by themselves; each waiter puts its word back to 0, so that a captured pass can run again.
#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <tuple>

#include "memory/cuda.hpp"
#include "memory/stream.hpp"
#include "parallel/sum.hpp"
#include "parallel/transport.hpp"

namespace tessera::parallel {
namespace {

struct Piece {
  void* data;  // send: own memory; recv: own memory that the peer writes
  std::int64_t bytes;
};

/// Neighbouring messages of a unit to or from one peer with one tag: one step of the plan.
struct Transfer {
  bool send;
  int peer;
  std::int64_t tag, turn;  // turn: how many transfers of equal (from, to, tag) came before
  int axis;
  std::vector<Piece> pieces;
  std::uint32_t* own_word = nullptr;   // send: ready, recv: arrived; in own memory
  std::uint32_t* peer_word = nullptr;  // its counterpart in the peer's memory
  std::vector<void*> targets;          // send: the receiver's pieces
};

struct Sum {
  void* slots;
  void* data;
  std::int64_t count;
  DType dtype;
  int axis;
};

struct Unit {
  std::deque<Transfer> transfers;  // pointers into it stay valid
  std::vector<Sum> sums;
};

/// What a rank tells the others of one transfer, followed by its pieces if it receives.
struct Offer {
  std::int64_t from, to, tag, turn, num_pieces;
  memory::SharedMemory word;
};
struct OfferedPiece {
  memory::SharedMemory memory;
  std::int64_t bytes;
};

template <class T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T take(const std::string& text, std::size_t& at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

class PeerRoute : public Route {
 public:
  PeerRoute(Communicator& comm, const std::vector<MessageUnit>& units, Budget& budget)
      : comm_(comm) {
    for (const MessageUnit& u : units) add(u, budget);
    std::int64_t num_words = 0;
    for (const Unit& u : units_) num_words += static_cast<std::int64_t>(u.transfers.size());
    words_ = Buffer(budget, num_words * 4, "transfer words", Space::cuda);
    auto* word = static_cast<std::uint32_t*>(words_.data());
    for (Unit& u : units_)
      for (Transfer& t : u.transfers) t.own_word = word++;
    meet();
  }

  ~PeerRoute() override {
    opened_.clear();
    // Memory may be freed only when no other rank has it open. A rank that fails is not waited for.
    try {
      if (std::uncaught_exceptions() == 0) comm_.barrier();
    } catch (...) {  // the barrier's error was or will be reported by the rank that failed
    }
  }

  void start(std::size_t unit, void* stream) override {
    Unit& u = units_[unit];
    for (const Sum& s : u.sums) {
      const std::int64_t bytes = s.count * size_of(s.dtype);
      memory::copy(static_cast<char*>(s.slots) + comm_.rank() * bytes, s.data, bytes, stream);
      comm_.count(s.axis, comm_.size() > 1 ? bytes : 0);
    }
    for (const Transfer& t : u.transfers)
      if (!t.send) memory::write_word(stream, t.peer_word, 1);
    for (const Transfer& t : u.transfers) {
      if (!t.send) continue;
      wait_and_clear(stream, t.own_word);
      for (std::size_t i = 0; i < t.pieces.size(); ++i)
        memory::copy(t.targets[i], t.pieces[i].data, t.pieces[i].bytes, stream);
      memory::write_word(stream, t.peer_word, 1);
      if (t.axis >= 0 && t.peer != comm_.rank())
        for (const Piece& p : t.pieces) comm_.count(t.axis, p.bytes);
    }
    for (const Transfer& t : u.transfers)
      if (!t.send) wait_and_clear(stream, t.own_word);
    for (const Sum& s : u.sums) sum_slots(s.slots, comm_.size(), s.data, s.count, s.dtype, stream);
  }

 private:
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

  static void wait_and_clear(void* stream, std::uint32_t* word) {
    memory::wait_word(stream, word, 1);
    memory::write_word(stream, word, 0);
  }

  void add(const MessageUnit& from, Budget& budget) {
    Unit& unit = units_.emplace_back();
    for (const Message& m : from.messages) {
      if (m.kind == Message::Kind::all_reduce) {
        add_sum(unit, m, budget);
        continue;
      }
      const bool send = m.kind == Message::Kind::send;
      Transfer* last = unit.transfers.empty() ? nullptr : &unit.transfers.back();
      if (!last || last->send != send || last->peer != m.peer || last->tag != m.tag)
        last = &add_transfer(unit, send, m.peer, m.tag, m.axis);
      last->pieces.push_back({m.data, m.bytes()});
    }
  }

  Transfer& add_transfer(Unit& unit, bool send, int peer, std::int64_t tag, int axis) {
    const Key pair{send, peer, tag, 0};
    unit.transfers.push_back({send, peer, tag, turns_[pair]++, axis, {}, nullptr, nullptr, {}});
    return unit.transfers.back();
  }

  /// Every rank writes its values into a slot of every other one; all add the slots up in the order
  /// of the ranks, so that the result is the same on all of them and from run to run.
  void add_sum(Unit& unit, const Message& m, Budget& budget) {
    slots_.emplace_back(budget, m.bytes() * comm_.size(), "slots of a sum", Space::cuda);
    auto* slots = static_cast<char*>(slots_.back().data());
    // Loads the kernel while nothing waits on the device; the slots are 0.
    sum_slots(slots, comm_.size(), slots, m.count, m.dtype, nullptr);
    memory::synchronize();
    const std::int64_t tag = -1 - num_sums_++;
    for (int d = 1; d < comm_.size(); ++d) {
      const int to = (comm_.rank() + d) % comm_.size();
      const int from = (comm_.rank() + comm_.size() - d) % comm_.size();
      add_transfer(unit, true, to, tag, Communicator::control_axis)
          .pieces.push_back({m.data, m.bytes()});
      add_transfer(unit, false, from, tag, Communicator::control_axis)
          .pieces.push_back({slots + from * m.bytes(), m.bytes()});
    }
    unit.sums.push_back({slots, m.data, m.count, m.dtype, m.axis});
  }

  std::string offers() const {
    std::string text;
    const std::int64_t me = comm_.rank();
    for (const Unit& u : units_)
      for (const Transfer& t : u.transfers) {
        append(text, Offer{t.send ? me : t.peer, t.send ? t.peer : me, t.tag, t.turn,
                           static_cast<std::int64_t>(t.pieces.size()), memory::share(t.own_word)});
        for (const Piece& p : t.pieces)
          append(text, OfferedPiece{
                           t.send || p.bytes == 0 ? memory::SharedMemory{} : memory::share(p.data),
                           p.bytes});
      }
    return text;
  }

  /// Tells all ranks of the own transfers and ties each to its counterpart.
  void meet() {
    std::string mine;
    together(comm_, [&] { mine = offers(); });
    std::vector<std::string> all = comm_.gather(mine, 0);
    std::map<Key, Transfer*> sends, recvs;
    for (Unit& u : units_)
      for (Transfer& t : u.transfers) (t.send ? sends : recvs)[Key{t.peer, t.tag, t.turn, 0}] = &t;
    all.resize(static_cast<std::size_t>(comm_.size()));
    for (int r = 0; r < comm_.size(); ++r) {
      std::string text = std::move(all[static_cast<std::size_t>(r)]);
      comm_.broadcast(text, 0);
      if (r != comm_.rank()) tie(r, text, sends, recvs);
    }
    for (const auto& [key, t] : sends)
      if (t->peer == comm_.rank()) tie_to_itself(*t, recvs);
    for (const auto* side : {&sends, &recvs})
      for (const auto& [key, t] : *side)
        if (!t->peer_word)
          throw std::logic_error(
              fmt::format("peer transport: rank {} has no counterpart of the {} "
                          "tag {} turn {} with rank {}",
                          comm_.rank(), t->send ? "send" : "receive", t->tag, t->turn, t->peer));
  }

  /// A message to this rank: the same words and copies, no memory to open.
  void tie_to_itself(Transfer& send, const std::map<Key, Transfer*>& recvs) const {
    const auto found = recvs.find(Key{send.peer, send.tag, send.turn, 0});
    if (found == recvs.end()) return;
    Transfer& recv = *found->second;
    if (recv.pieces.size() != send.pieces.size())
      throw std::logic_error("peer transport: the sides of a transfer have unlike pieces");
    send.peer_word = recv.own_word;
    recv.peer_word = send.own_word;
    for (const Piece& p : recv.pieces) send.targets.push_back(p.data);
  }

  void tie(int rank, const std::string& text, const std::map<Key, Transfer*>& sends,
           const std::map<Key, Transfer*>& recvs) {
    for (std::size_t at = 0; at < text.size();) {
      const auto offer = take<Offer>(text, at);
      const bool to_me = offer.to == comm_.rank(), from_me = offer.from == comm_.rank();
      const auto& mine = to_me ? recvs : sends;
      const auto found =
          to_me || from_me ? mine.find(Key{rank, offer.tag, offer.turn, 0}) : mine.end();
      Transfer* t = found == mine.end() ? nullptr : found->second;
      if (t) t->peer_word = static_cast<std::uint32_t*>(open(rank, offer.word));
      if (t && t->pieces.size() != static_cast<std::size_t>(offer.num_pieces))
        throw std::logic_error("peer transport: the sides of a transfer have unlike pieces");
      for (std::int64_t i = 0; i < offer.num_pieces; ++i) {
        const auto piece = take<OfferedPiece>(text, at);
        if (!t) continue;
        if (piece.bytes != t->pieces[static_cast<std::size_t>(i)].bytes)
          throw std::logic_error("peer transport: the sides of a transfer have unlike sizes");
        if (t->send) t->targets.push_back(piece.bytes > 0 ? open(rank, piece.memory) : nullptr);
      }
    }
  }

  /// Address in this process of memory that another rank shares.
  void* open(int rank, const memory::SharedMemory& from) {
    const std::string handle(reinterpret_cast<const char*>(from.handle.data()), from.handle.size());
    auto [at, inserted] = opened_.try_emplace({rank, handle}, nullptr);
    if (inserted) at->second = std::make_unique<memory::OpenedMemory>(from);
    return static_cast<char*>(at->second->data()) + from.offset;
  }

  Communicator& comm_;
  std::vector<Unit> units_;
  Buffer words_;
  std::vector<Buffer> slots_;
  std::map<Key, std::int64_t> turns_;
  std::int64_t num_sums_ = 0;
  std::map<std::pair<int, std::string>, std::unique_ptr<memory::OpenedMemory>> opened_;
};

class Peer : public Transport {
 public:
  explicit Peer(Communicator& comm) : comm_(comm) {}
  std::string_view name() const override { return "peer"; }
  std::unique_ptr<Route> open(std::vector<MessageUnit> units, Budget& budget) override {
    return std::make_unique<PeerRoute>(comm_, units, budget);
  }

 private:
  Communicator& comm_;
};

constexpr const char* other_transports = "choose parallel.transport = \"nccl\" or \"staged\"";

/// Opens four bytes of every other rank, once.
void try_to_open(const Communicator& comm) {
  Budget budget;
  const Buffer mine(budget, 4, "probe of shared memory", Space::cuda);
  memory::SharedMemory shared;
  together(comm, [&] { shared = memory::share(mine.data()); });
  const std::vector<std::byte> all = comm.all_gather_bytes(std::as_bytes(std::span(&shared, 1)));
  together(comm, [&] {
    for (int r = 0; r < comm.size(); ++r) {
      if (r == comm.rank()) continue;
      memory::SharedMemory other;
      std::memcpy(&other, all.data() + static_cast<std::size_t>(r) * sizeof other, sizeof other);
      try {
        const memory::OpenedMemory opened(other);
      } catch (const Error& e) {
        throw Error(
            Exit::environment,
            fmt::format("transport peer: memory of rank {} cannot be opened: {}", r, e.message()),
            other_transports);
      }
    }
  });
  comm.barrier();  // nobody frees what another one has open
}

}  // namespace

std::unique_ptr<Transport> make_peer(Communicator& comm) {
  const Placement place = find_placement(comm);
  if (place.num_hosts > 1)
    throw AgreedError(Exit::environment,
                      fmt::format("transport peer copies between processes of one host, the ranks "
                                  "run on {} hosts",
                                  place.num_hosts),
                      other_transports);
  try_to_open(comm);
  return std::make_unique<Peer>(comm);
}

}  // namespace tessera::parallel
