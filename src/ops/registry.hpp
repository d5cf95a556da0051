// SPDX-License-Identifier: Apache-2.0
// The operator registry: operator name -> implementations of several backends. A backend adds its
// implementations by one explicit call in the driver's start-up (no static initialisers).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/call.hpp"

namespace tessera::ops {

/// Dimension (0 or 1) along which each argument of a call is halved; empty: it stays whole.
using Cut = std::vector<std::int8_t>;

struct Implementation {
  std::string op;       ///< "attention.forward"
  std::string backend;  ///< "reference", "kokkos", "cuda", ...
  int priority = 0;     ///< the highest one that supports a call is chosen
  std::function<bool(const Call&)> supports;
  std::function<void(const Call&)> run;
  /// Builds what run() keeps for calls of this shape and mask (tables on the device), so that
  /// nothing is built inside a pass; may be empty. run() without it builds on its first call.
  std::function<void(const Call&)> prepare = nullptr;
  /// Whether run() can do without the former contents of an `acc` argument of this call
  /// (Attributes::fresh), so that nobody has to clear it first; empty: never.
  std::function<bool(const Call&, std::size_t argument)> overwrites = nullptr;
  /// Whether run() can round the partial output that it updates into another tensor
  /// (Attributes::store), so that nobody has to copy it; empty: never.
  std::function<bool(const Call&, const TensorRef& to)> stores = nullptr;
  /// How this call falls into two that together are it, to the last bit, and may run at the same
  /// time on two streams; empty: never.
  std::function<Cut(const Call&)> cut = nullptr;
  bool repeatable = true;  ///< the same call gives the same bits in every run
};

/// Attributes::fresh of a call whose outputs nothing was put in yet: all that an implementation
/// can write.
std::uint32_t fresh_bits(const Implementation& implementation, const Call& call);

class Registry {
 public:
  void add(Implementation implementation);

  /// From now on `op` runs on `backend` only. Error(usage) if that pair was never added.
  void pin(const std::string& op, const std::string& backend);
  /// `backend` is not used for any operator.
  void deny(const std::string& backend);
  /// Only implementations that give the same bits in every run are used.
  void set_deterministic(bool on) { deterministic_ = on; }
  /// Executors measure which backend is fastest (exec/executor.hpp) instead of going by priority.
  void set_autotune(bool on) { autotune_ = on; }
  bool autotune() const { return autotune_; }

  /// All implementations that may run a call, one per backend, highest priority first: those that
  /// support it, are not denied and agree with a pin. May be empty.
  std::vector<const Implementation*> candidates(const Call& call) const;
  /// The implementation for a call; Error(environment) naming the operator, the dtypes and shapes
  /// and every backend that was asked, if none supports it.
  const Implementation& choose(const Call& call) const;
  void run(const Call& call) const { choose(call).run(call); }
  void prepare(const Call& call) const {
    const Implementation& chosen = choose(call);
    if (chosen.prepare) chosen.prepare(call);
  }

  const std::vector<Implementation>& list() const { return implementations_; }

 private:
  std::vector<Implementation> implementations_;  // sorted by priority, highest first
  std::vector<std::pair<std::string, std::string>> pins_;
  std::vector<std::string> denied_;
  bool autotune_ = false, deterministic_ = false;

  /// Why an implementation of the call's operator may not run it; nullptr when it may.
  const char* refusal(const Implementation& i, const Call& call) const;
};

}  // namespace tessera::ops
