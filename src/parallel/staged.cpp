// SPDX-License-Identifier: Apache-2.0
// Transport through host memory: the stream copies what it sends into pinned memory and stops at a
// gate, the host passes it on by MPI, the stream copies what came. Works wherever MPI does.
#include <algorithm>
#include <map>

#include "memory/cuda.hpp"
#include "parallel/gate.hpp"
#include "parallel/transport.hpp"

namespace tessera::parallel {
namespace {

class StagedRoute : public Route {
 public:
  StagedRoute(Communicator& comm, std::vector<MessageUnit> units, Budget& budget)
      : comm_(comm),
        units_(std::move(units)),
        words_(budget, static_cast<std::int64_t>(units_.size()) * Gate::words * 4, "gate words",
               Space::pinned) {
    std::map<int, std::int64_t> need;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      gates_.emplace_back(static_cast<std::uint32_t*>(words_.data()) + u * Gate::words);
      std::int64_t bytes = 0;
      for (const Message& m : units_[u].messages) bytes += m.bytes();
      need[units_[u].queue] = std::max(need[units_[u].queue], bytes);
      queues_[units_[u].queue].units.push_back(u);
    }
    // Units of a queue follow each other on one stream, so that one staging area serves them all.
    for (auto& [queue, bytes] : need)
      queues_[queue].staging = Buffer(budget, bytes, "staging of a queue", Space::pinned);
  }

  void start(std::size_t unit, void* stream) override {
    const MessageUnit& u = units_[unit];
    each(u, [&](const Message& m, char* at) {
      if (m.kind != Message::Kind::recv) memory::copy(at, m.data, m.bytes(), stream);
    });
    gates_[unit].enqueue(stream);
    each(u, [&](const Message& m, char* at) {
      if (m.kind != Message::Kind::send) memory::copy(m.data, at, m.bytes(), stream);
    });
  }

  void progress() override {
    for (auto& [number, q] : queues_) {
      const std::size_t unit = q.units[q.next];
      if (!q.in_flight && gates_[unit].reached()) {
        q.in_flight = true;
        post(units_[unit], q.requests);
      }
      if (!q.in_flight || !q.requests.test()) continue;
      q.in_flight = false;
      gates_[unit].release();
      q.next = (q.next + 1) % q.units.size();
    }
  }

 private:
  struct Queue {
    Buffer staging;
    std::vector<std::size_t> units;
    std::size_t next = 0;
    bool in_flight = false;
    RequestSet requests;
  };

  /// Every message of a unit with its place in the staging area.
  template <class F>
  void each(const MessageUnit& u, F f) {
    auto* at = static_cast<char*>(queues_.at(u.queue).staging.data());
    for (const Message& m : u.messages) {
      f(m, at);
      at += m.bytes();
    }
  }

  void post(const MessageUnit& u, RequestSet& requests) {
    each(u, [&](const Message& m, char* at) {
      const int tag = static_cast<int>(m.tag % comm_.max_tag());
      const auto n = static_cast<std::size_t>(m.count);
      if (m.kind == Message::Kind::recv)
        comm_.irecv(requests, at, m.bytes(), m.peer, tag);
      else if (m.kind == Message::Kind::send)
        comm_.isend(requests, at, m.bytes(), m.peer, tag, m.axis);
      else if (m.dtype == DType::f64)
        comm_.all_reduce_sum(std::span(reinterpret_cast<double*>(at), n), m.axis);
      else
        comm_.all_reduce_sum(std::span(reinterpret_cast<float*>(at), n), m.axis);
    });
  }

  Communicator& comm_;
  std::vector<MessageUnit> units_;
  Buffer words_;
  std::vector<Gate> gates_;
  std::map<int, Queue> queues_;
};

class Staged : public Transport {
 public:
  explicit Staged(Communicator& comm) : comm_(comm) {}
  std::string_view name() const override { return "staged"; }
  std::unique_ptr<Route> open(std::vector<MessageUnit> units, Budget& budget) override {
    return std::make_unique<StagedRoute>(comm_, std::move(units), budget);
  }

 private:
  Communicator& comm_;
};

}  // namespace

std::unique_ptr<Transport> make_staged(Communicator& comm) {
  return std::make_unique<Staged>(comm);
}

}  // namespace tessera::parallel
