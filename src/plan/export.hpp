// SPDX-License-Identifier: Apache-2.0
// A program as text: JSON for tools, a table of one rank's steps for people (--print-plan).
#pragma once

#include <iosfwd>
#include <string>

#include "plan/plan.hpp"

namespace tessera::plan {

/// Writes the program as JSON, one step a line, without holding it in memory:
/// {name, axes: [{name, groups}], coverage: [{label, index}], ranks: [{rank, buffers, queues,
/// steps: [{step, queue, kind, label, index, group, axis, peer, key, bytes, op, flops, after,
/// uses}]}]}. Keys that say nothing (group -1, no peer) are left out. Error(io) when the stream
/// fails.
void write_json(const Program& program, std::ostream& out);

/// The steps of one rank in aligned columns: step, queue, kind, label, index, peer, bytes, waits
/// for. Error(usage) when there is no such rank.
std::string table_of(const Program& program, int rank);

std::string_view name_of(StepKind kind);

}  // namespace tessera::plan
