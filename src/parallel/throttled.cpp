// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <map>

#include "parallel/gate.hpp"
#include "parallel/transport.hpp"

namespace tessera::parallel {
namespace {

using Clock = std::chrono::steady_clock;

/// A gate behind every unit of the inner route. It is reached when the bytes have moved, which both
/// sides see at the same time; the host opens it when the slower link would have moved them.
class ThrottledRoute : public Route {
 public:
  ThrottledRoute(Transport& inner, std::vector<MessageUnit> units, double bytes_per_s,
                 Budget& budget)
      : words_(budget, static_cast<std::int64_t>(units.size()) * Gate::words * 4, "gate words",
               Space::pinned) {
    for (std::size_t u = 0; u < units.size(); ++u) {
      std::int64_t sent = 0, received = 0;
      for (const Message& m : units[u].messages)
        (m.kind == Message::Kind::recv ? received : sent) += m.bytes();
      const double seconds = static_cast<double>(std::max(sent, received)) / bytes_per_s;
      holds_.push_back({Gate(static_cast<std::uint32_t*>(words_.data()) + u * Gate::words),
                        std::chrono::duration<double>(seconds)});
      queues_[units[u].queue].units.push_back(u);
    }
    inner_ = inner.open(std::move(units), budget);
  }

  void start(std::size_t unit, void* stream) override {
    inner_->start(unit, stream);
    holds_[unit].gate.enqueue(stream);
  }

  void progress() override {
    inner_->progress();
    for (auto& [number, q] : queues_) {
      const Hold& hold = holds_[q.units[q.next]];
      if (!q.held && hold.gate.reached()) {
        q.held = true;
        q.until = Clock::now() + std::chrono::duration_cast<Clock::duration>(hold.time);
      }
      if (!q.held || Clock::now() < q.until) continue;
      q.held = false;
      hold.gate.release();
      q.next = (q.next + 1) % q.units.size();
    }
  }

 private:
  struct Hold {
    Gate gate;
    std::chrono::duration<double> time;
  };
  struct Queue {
    std::vector<std::size_t> units;
    std::size_t next = 0;
    bool held = false;
    Clock::time_point until;
  };

  Buffer words_;
  std::vector<Hold> holds_;
  std::map<int, Queue> queues_;
  std::unique_ptr<Route> inner_;
};

class Throttled : public Transport {
 public:
  Throttled(std::unique_ptr<Transport> inner, double bytes_per_s)
      : inner_(std::move(inner)),
        bytes_per_s_(bytes_per_s),
        name_(std::string(inner_->name()) + ", throttled") {}
  std::string_view name() const override { return name_; }
  bool one_at_a_time() const override { return inner_->one_at_a_time(); }
  std::unique_ptr<Route> open(std::vector<MessageUnit> units, Budget& budget) override {
    return std::make_unique<ThrottledRoute>(*inner_, std::move(units), bytes_per_s_, budget);
  }

 private:
  std::unique_ptr<Transport> inner_;
  double bytes_per_s_;
  std::string name_;
};

}  // namespace

std::unique_ptr<Transport> make_throttled(std::unique_ptr<Transport> inner, double bytes_per_s) {
  return std::make_unique<Throttled>(std::move(inner), bytes_per_s);
}

}  // namespace tessera::parallel
