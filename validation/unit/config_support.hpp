// SPDX-License-Identifier: Apache-2.0
// The table of keys that the config tests share.
#pragma once

#include <string>
#include <utility>

#include "config/config.hpp"

namespace tessera::config {

inline Table test_table() {
  Table table(
      {{.name = "attention.schemes",
        .type = Type::texts,
        .fallback = Texts{"ring"},
        .choices = {"ring", "mesh", "all_gather"},
        .meaning = "schemes to run"},
       {.name = "attention.sequence",
        .type = Type::size,
        .fallback = "8K",
        .unit = "tokens",
        .minimum = 1,
        .meaning = "length of the query sequence"},
       {.name = "attention.head_dim",
        .type = Type::integer,
        .fallback = 128,
        .minimum = 1,
        .maximum = 512,
        .meaning = "elements of one head"},
       {.name = "attention.softcap",
        .type = Type::real,
        .fallback = 0,
        .minimum = 0,
        .meaning = "cap on scores, 0 = none"},
       {.name = "attention.mask",
        .type = Type::text,
        .fallback = "causal",
        .choices = {"full", "causal", "window"},
        .meaning = "mask"},
       {.name = "attention.mesh.a", .type = Type::integer, .fallback = 0, .meaning = "rows"},
       {.name = "run.limit", .type = Type::duration, .fallback = 0, .meaning = "time limit"},
       {.name = "run.name", .type = Type::text, .fallback = "", .meaning = "title"},
       {.name = "verify.enabled",
        .type = Type::boolean,
        .fallback = true,
        .meaning = "compare with the reference"}});
  table.add_list("rates", {{.name = "rates.op", .type = Type::text, .meaning = "operator"},
                           {.name = "rates.flops",
                            .type = Type::real,
                            .unit = "flop/s",
                            .minimum = 1,
                            .meaning = "rate"}});
  return table;
}

/// Loads `text` as if it were the file deck.toml.
inline Config load_text(const std::string& text, std::vector<std::string> sets = {},
                        std::map<std::string, std::string> environment = {}) {
  return load(test_table(), Sources{"deck.toml", text, std::move(sets), std::move(environment)});
}

}  // namespace tessera::config
