// SPDX-License-Identifier: Apache-2.0
// Ends a job that makes no progress. The executor reports what it is doing; when nothing is
// reported for the given time, the watchdog thread prints rank, host and that text and ends the
// process with exit code 6, on which the launcher takes the other ranks down.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

namespace tessera::parallel {

class Watchdog {
 public:
  /// seconds <= 0: off. `who` names rank and host in the message.
  Watchdog(double seconds, std::string who);
  ~Watchdog();
  /// Something went on. Cheap enough to be called per step.
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }
  /// What is being waited for, called from the watchdog thread when time is up; {} = nothing that
  /// has a name. Waits while the thread is calling the text before.
  void describe(std::function<std::string()> text);

 private:
  struct State;
  std::atomic<long> beats_{0};
  std::unique_ptr<State> state_;
};

}  // namespace tessera::parallel
