// SPDX-License-Identifier: Apache-2.0
// One walk through a plan on a host rank: a single thread computes, posts transfers and completes
// them between parts of its work and while it waits.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "exec/prepared.hpp"

namespace tessera::exec {

class Executor::Host {
 public:
  explicit Host(Prepared& p);
  Measured execute();
  /// Called by operators between sub-tiles.
  void progress();

 private:
  struct Queue {
    const QueueSteps* list;
    std::size_t unit = 0;
    bool in_flight = false;
    parallel::RequestSet requests;
    bool finished() const { return unit >= list->units.size(); }
  };
  class Registration;

  double now() const;
  bool finished() const;
  bool ready(std::int32_t step) const;
  bool advance();
  bool turn(Queue& queue);
  void compute(std::int32_t step);
  void post(Queue& queue, std::int32_t step);
  void reduce(const TensorRef& t, int axis);
  void complete(std::int32_t step);
  std::string waiting_for() const;

  Prepared& p_;
  std::vector<char> done_;
  std::vector<Queue> queues_;  // of transfers
  std::size_t next_ = 0;       // into Prepared::compute
  double in_progress_ = 0;
  std::chrono::steady_clock::time_point start_;
  Measured out_;
};

}  // namespace tessera::exec
