// SPDX-License-Identifier: Apache-2.0
// Proves a program right before anything runs: references, messages, collectives, deadlock with
// zero buffering, order of accesses inside a rank, coverage of the work. Independent of the
// builder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

/// Names of what may be wrong; tests, reports and scripts key on them.
namespace fault {
inline constexpr std::string_view bad_reference = "bad reference";
inline constexpr std::string_view dropped_receive = "dropped receive";  ///< send without receive
inline constexpr std::string_view dropped_send = "dropped send";        ///< receive without send
inline constexpr std::string_view size_mismatch = "size mismatch";
inline constexpr std::string_view content_mismatch = "content mismatch";
inline constexpr std::string_view swapped_messages = "swapped messages";
inline constexpr std::string_view collective_order = "collective order";
inline constexpr std::string_view deadlock = "deadlock";
inline constexpr std::string_view missing_wait = "missing wait";
inline constexpr std::string_view reused_early = "buffer reused too early";
inline constexpr std::string_view unordered_writes = "unordered writes";
inline constexpr std::string_view read_before_write = "read before write";
inline constexpr std::string_view duplicated_work = "duplicated work";
inline constexpr std::string_view missing_work = "missing work";
inline constexpr std::string_view unexpected_work = "unexpected work";
}  // namespace fault

struct Fault {
  std::string_view name;  ///< one of fault::
  int rank = -1;          ///< -1: the program as a whole
  int step = -1;          ///< of that rank; -1: no single step
  std::string message;
};

/// All faults, at most 100 of each name. A program with bad references is checked no further.
/// Order inside a rank is: queues are FIFO, a unit follows the whole previous unit and the `after`
/// steps of all its members; nothing orders the members of one unit.
std::vector<Fault> check(const Program& program);

}  // namespace tessera::plan
