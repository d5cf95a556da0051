// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name nearest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tessera {

/// Insertions, deletions, replacements and swaps of neighbours that turn a into b
/// (optimal string alignment distance).
int edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`, empty when none is near enough to be meant. A candidate whose
/// last dotted part equals `name` counts as near ("head_dim" means "attention.head_dim").
std::string nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace tessera
