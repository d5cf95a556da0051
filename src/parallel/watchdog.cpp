// SPDX-License-Identifier: Apache-2.0
// The watchdog thread. It counts the time it was itself awake, so that a job which the scheduler
// suspended and resumed is not taken for a hung one.
#include "parallel/watchdog.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/error.hpp"

namespace tessera::parallel {

struct Watchdog::State {
  double seconds = 0;
  std::string who;
  std::mutex mutex;  // guards text and stop
  std::condition_variable wake;
  std::function<std::string()> text;
  bool stop = false;
  std::thread thread;

  void watch(const std::atomic<long>& beats);
  [[noreturn]] void end_process();
};

void Watchdog::State::watch(const std::atomic<long>& beats) {
  using Clock = std::chrono::steady_clock;
  const double interval = std::min(seconds / 4, 0.25);
  long seen = beats.load();
  double idle = 0;
  auto before = Clock::now();
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, std::chrono::duration<double>(interval), [this] { return stop; })) {
    const auto now = Clock::now();
    const double passed = std::chrono::duration<double>(now - before).count();
    before = now;
    idle += std::min(passed, 4 * interval);
    if (const long count = beats.load(); count != seen) {
      seen = count;
      idle = 0;
    }
    if (idle >= seconds) end_process();
  }
}

void Watchdog::State::end_process() {
  std::fprintf(stderr, "%s watchdog: no progress for %g s\n", who.c_str(), seconds);
  std::fflush(stderr);
  const std::string doing =
      text ? text() : "not in a plan: waiting in a collective call or in file access";
  std::fprintf(stderr, "%s watchdog: %s\n", who.c_str(), doing.c_str());
  std::fflush(stderr);
  // The first exit ends the job; the other ranks get the time to say what they wait for, which is
  // how the one that hangs is found.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  std::_Exit(static_cast<int>(Exit::watchdog));
}

Watchdog::Watchdog(double seconds, std::string who) {
  if (seconds <= 0) return;
  state_ = std::make_unique<State>();
  state_->seconds = seconds;
  state_->who = std::move(who);
  state_->thread = std::thread([this] { state_->watch(beats_); });
}

Watchdog::~Watchdog() {
  if (!state_) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
}

void Watchdog::describe(std::function<std::string()> text) {
  if (!state_) return;
  const std::lock_guard lock(state_->mutex);
  state_->text = std::move(text);
}

}  // namespace tessera::parallel
