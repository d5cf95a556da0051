// SPDX-License-Identifier: Apache-2.0
// A plan on a device: one stream per queue, two where it computes (exec/lanes.hpp), an event
// wherever a step waits for one of another queue, transfers through a route. Nothing waits on the
// host inside a pass; from the second run on it is one graph launch.
#pragma once

#include <optional>
#include <vector>

#include "exec/order.hpp"
#include "memory/stream.hpp"

namespace tessera::exec {

class Executor::Device {
 public:
  /// Collective: opens the route. Operators build here what they keep.
  Device(Prepared& p, DeviceRun& options, Budget& budget);
  Measured run(bool profile);

 private:
  class Registration;
  struct Entry : Ordered {
    std::size_t transfer = 0;                           ///< comm: its number in the route
    std::optional<memory::Event> join, fork;            ///< between the lanes
    std::optional<memory::Event> finished;              ///< where it is awaited
    std::optional<memory::Event> half_finished;         ///< its second half
    std::optional<memory::Event> begin_mark, end_mark;  ///< of a profiled run
  };

  void load();
  void order();
  void open_second_lane(std::size_t queue);
  void open_route(Budget& budget);
  std::vector<parallel::Message> messages_of(const QueueSteps& queue, Unit unit) const;
  void enqueue(bool profile);
  void enqueue(Entry& entry, bool profile);
  void compute(const Entry& entry, bool split);
  void wait_for(const Entry& entry, const memory::Stream& stream, bool profile) const;
  void capture();
  void launch(bool profile);
  void wait();
  void make_marks();
  void read_marks(Measured& out) const;
  std::string waiting_for() const;
  void* stream_of(const Entry& e) const { return streams_[e.queue]->handle(); }
  void* second_of(const Entry& e) const { return second_[e.queue]->handle(); }
  /// Of a compute step, or of the first message of a unit.
  std::size_t step_of(const Entry& e) const {
    return static_cast<std::size_t>(p_.queues[e.queue].steps[e.unit.begin]);
  }

  Prepared& p_;
  DeviceRun& options_;
  std::vector<const memory::Stream*> streams_;  // as Plan::queues
  std::vector<const memory::Stream*> second_;   // lanes of compute queues; null where none is used
  std::vector<Entry> entries_;
  memory::Event fork_, begin_, end_;
  std::vector<memory::Event> joins_;  // one per queue
  std::unique_ptr<parallel::Route> route_;
  std::optional<memory::Graph> graph_;
  std::vector<std::int64_t> sent_by_graph_;  // per axis, counted while the graph was captured
};

}  // namespace tessera::exec
