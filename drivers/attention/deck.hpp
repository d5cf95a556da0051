// SPDX-License-Identifier: Apache-2.0
// The keys of attention decks and how they become a problem and schemes. Shared by
// tessera-attention and tessera-plan.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/problem.hpp"
#include "config/config.hpp"

namespace tessera::drivers {

config::Table attention_table();

/// Integers of an input file: documents [d], regions [r, 2], slices [s, 5]; empty when it has none.
using MaskArrays = std::function<std::vector<std::int64_t>(const std::string& name)>;

/// The problem of a deck. `arrays` is asked only by masks that need arrays. Error(usage).
attention::Problem make_problem(const config::Config& config, const MaskArrays& arrays);

/// Schemes in the order of the deck, not yet chosen (mesh a and b may be 0), validated for n ranks.
std::vector<attention::Scheme> make_schemes(const config::Config& config,
                                            const attention::Problem& problem, int n);

std::vector<attention::Pass> make_passes(const config::Config& config);

/// True when the mask of the deck comes from arrays in input.file.
bool mask_needs_file(const config::Config& config);

/// "32 query heads, 8 KV heads, 4096 tokens, ..." for tables and reports.
std::string shape_text(const attention::Problem& p);

}  // namespace tessera::drivers
