// SPDX-License-Identifier: Apache-2.0
// Runs schemes on this job's ranks and measures them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attention/verify.hpp"
#include "drivers/attention/record.hpp"
#include "trace/event.hpp"

namespace tessera::drivers {

struct BenchOptions {
  int warmup = 1;
  int repeats = 5;
  trace::Timeline* timeline =
      nullptr;  ///< gets the last repeat of every pass, on GPUs the one before
  /// Called for every pass that is reported, before its session ends; writes outputs.
  std::function<void(const attention::Session&, const attention::PreparedPass&, const Record&)>
      keep;
};

/// Runs `scheme` forward and, when `passes` asks for it, backward; fills the measured part of the
/// records in `records` (one per pass reported, planned before). `reference` may be null.
/// Collective. Error(numerical) when a result is not finite although the inputs are.
void bench_scheme(const attention::Problem& p, const attention::Scheme& scheme,
                  const plan::Machine& machine, const attention::Fill& fill,
                  attention::Surroundings around, const attention::Reference* reference,
                  const BenchOptions& options, const std::vector<Record*>& records);

}  // namespace tessera::drivers
