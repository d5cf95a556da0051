// SPDX-License-Identifier: Apache-2.0
// Timelines as Chrome trace events, which Perfetto opens: rank = process, queue = thread, arrows
// for messages. The file is the array form, one event a line: what a killed writer leaves can be
// read.
#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

#include "trace/event.hpp"

namespace tessera::trace {

/// Writes the timeline; ts and dur are microseconds since its first event, as numbers with three
/// decimals. Arrows are drawn where both ends of a flow are present; their ids are renumbered
/// from 1.
void write_chrome(const Timeline& timeline, std::ostream& out);

/// The same into a file, under another name until it is complete. Error(io) names the path; then
/// nothing is left behind.
void write_chrome_file(const Timeline& timeline, const std::string& path);

/// Strict JSON from the beginning of a trace file: keeps the whole events and closes the array.
std::string repaired(std::string_view text);

}  // namespace tessera::trace
