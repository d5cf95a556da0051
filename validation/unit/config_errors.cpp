// SPDX-License-Identifier: Apache-2.0
// Every message about a wrong configuration names the key, the value and what to write instead.
#include <gtest/gtest.h>

#include <iostream>
#include <random>

#include "config_support.hpp"

namespace tessera::config {
namespace {

/// Loads what must fail and checks code and parts of the message.
void refused(const std::string& text, const std::vector<std::string>& sets,
             const std::vector<std::string>& parts,
             const std::map<std::string, std::string>& environment = {}) {
  try {
    load_text(text, sets, environment);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage) << e.what();
    for (const std::string& part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "no '" << part << "' in:\n"
                                                                     << e.what();
  }
}

TEST(config, unknown_key_has_line_caret_and_suggestion) {
  refused("[attention]\nsequnce = 4096\n", {},
          {"unknown key 'attention.sequnce'", "deck.toml:2\n  2 | sequnce = 4096\n    | ^^^^^^^",
           "did you mean 'attention.sequence'?"});
}

TEST(config, caret_points_at_the_whole_word) {
  refused("attention.mesh.a = 0.5 # a\n", {},
          {"1 | attention.mesh.a = 0.5 # a\n    |                ^\n"});
}

TEST(config, damaged_decks_end_in_a_usage_error_and_nothing_else) {
  const std::string good =
      "[attention]\nsequence = \"8K\"\nschemes = [\"ring\", \"mesh\"]\nmesh.a = 2\n"
      "[run]\nlimit = \"00:01:00\"\n[[rates]]\nop = \"gemm\"\nflops = 1e9\n";
  std::minstd_rand random(1);
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text = good;
    for (int change = 0; change <= i % 3; ++change) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, 1, "[]{}\"'=.#\n\\,0"[random() % 13]);
      }
    }
    try {
      load_text(text);
      ++accepted;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), Exit::usage);
    }
  }
  std::cout << accepted << " of 5000 damaged decks are still valid\n";
  EXPECT_LT(accepted, 2500);
}

TEST(config, unknown_section_has_suggestion) {
  refused("\n[atention]\nhead_dim = 64\n", {},
          {"'atention.head_dim'", "deck.toml:3", "did you mean 'attention.head_dim'?"});
}

TEST(config, unknown_key_first_line_is_reported_first) {
  refused("[run]\nzebra = 1\nalpha = 2\n", {}, {"run.zebra", "deck.toml:2"});
}

TEST(config, section_used_as_key_lists_its_keys) {
  refused("[attention]\nmesh = 4\n", {}, {"'attention.mesh'", "is a section", "attention.mesh.a"});
}

TEST(config, wrong_type_names_found_and_accepted) {
  refused("[attention]\nhead_dim = 1.5\n", {},
          {"attention.head_dim", "expected an integer", "real number 1.5", "deck.toml:2",
           "at least 1, at most 512, default 128"});
  refused("[attention]\nhead_dim = \"128\"\n", {}, {"expected an integer", "a text \"128\""});
  refused("[attention]\nschemes = \"ring\"\n", {}, {"attention.schemes", "a list of texts"});
  refused("[attention]\nschemes = [1, 2]\n", {}, {"attention.schemes", "not all texts"});
  refused("[verify]\nenabled = 1\n", {}, {"verify.enabled", "true or false", "an integer 1"});
  refused("[run]\nname = 2020-01-01\n", {}, {"run.name", "a date or time"});
}

TEST(config, out_of_range_names_limit) {
  refused("[attention]\nhead_dim = 0\n", {}, {"attention.head_dim", "0 is below", "1"});
  refused("[attention]\nhead_dim = 513\n", {}, {"513 is above", "512"});
  refused("[attention]\nsoftcap = -1.0\n", {}, {"attention.softcap", "-1.0 is below", "0.0"});
  refused("[attention]\nsoftcap = inf\n", {}, {"attention.softcap", "not finite"});
  refused("", {"attention.sequence=0"},
          {"attention.sequence", "0 is below", "--set attention.sequence=0"});
}

TEST(config, wrong_unit_names_the_right_ones) {
  refused("[attention]\nsequence = \"8KB\"\n", {},
          {"attention.sequence", "8KB", "\"8K\"", "tokens"});
  refused("[run]\nlimit = \"5min\"\n", {}, {"run.limit", "5min", "hh:mm:ss"});
  refused("[run]\nlimit = -1.0\n", {}, {"run.limit", "-1.0"});
  refused("", {"run.limit=10:00"}, {"run.limit", "10:00", "hh:mm:ss"});
}

TEST(config, bad_choice_lists_choices_and_suggests) {
  refused("[attention]\nmask = \"casual\"\n", {},
          {"attention.mask", "'casual' is none of full, causal, window", "did you mean 'causal'?"});
  refused("", {"attention.schemes=ring,mehs"}, {"'mehs'", "did you mean 'mesh'?"});
  refused("", {"attention.schemes=ring,ring"}, {"'ring' stands twice"});
}

TEST(config, set_without_value_or_with_unknown_key) {
  refused("", {"attention.sequence"}, {"'attention.sequence'", "key=value"});
  refused("", {"=3"}, {"key=value"});
  refused("", {"attention.headdim=3"},
          {"--set attention.headdim=3", "did you mean 'attention.head_dim'?"});
  refused("", {"attention.head_dim=x"}, {"expected an integer, found 'x'"});
  refused("", {"attention.head_dim=99999999999999999999"}, {"attention.head_dim"});
}

TEST(config, environment_typo_is_an_error) {
  refused("", {}, {"TESSERA_ATTENTION__HEADDIM", "TESSERA_ATTENTION__HEAD_DIM"},
          {{"TESSERA_ATTENTION__HEADDIM", "64"}});
  refused("", {}, {"attention.head_dim", "environment TESSERA_ATTENTION__HEAD_DIM=many"},
          {{"TESSERA_ATTENTION__HEAD_DIM", "many"}});
}

TEST(config, toml_syntax_error_has_position) {
  refused("[attention]\nhead_dim = 64\nmask = causal\n", {},
          {"deck.toml", "not valid TOML", "deck.toml:3"});
  refused("[attention]\nhead_dim = 64\nhead_dim = 65\n", {}, {"deck.toml:3"});
  refused("[attention\n", {}, {"deck.toml:1"});
}

TEST(config, list_item_errors_name_line_and_key) {
  refused("[[rates]]\nop = \"gemm\"\n", {}, {"'rates.flops' is missing", "deck.toml:1"});
  refused("[[rates]]\nop = \"gemm\"\nflop = 1.0\n", {},
          {"'rates.flop'", "deck.toml:3", "rates.flops"});
  refused("[[rate]]\nop = \"gemm\"\n", {}, {"unknown key 'rate'", "deck.toml:1"});
  refused("[rates]\nop = \"gemm\"\n", {}, {"rates.op", "[[rates]]"});
}

TEST(config, required_key_missing_says_how_to_give_it) {
  const Table table({{.name = "input.file", .type = Type::text, .meaning = "HDF5 input"}});
  try {
    load(table, Sources{"deck.toml", "", {}, {}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'input.file' is missing"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("--set input.file="), std::string::npos);
  }
}

TEST(config, missing_file_and_folder_are_io_errors) {
  for (const char* path : {"no/such/deck.toml", "/"}) {
    try {
      read_sources(path);
      FAIL() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::io);
      EXPECT_NE(std::string(e.what()).find(path), std::string::npos);
    }
  }
}

TEST(config, cross_check_error_names_key_value_origin) {
  const Error e = load_text("[attention]\nmesh.a = 4\n")
                      .error("attention.mesh.a", "does not divide 6 ranks", "use 1, 2, 3 or 6");
  EXPECT_STREQ(
      e.what(),
      "attention.mesh.a = 4 does not divide 6 ranks\n  at: deck.toml:2\n  try: use 1, 2, 3 or 6");
}

}  // namespace
}  // namespace tessera::config
