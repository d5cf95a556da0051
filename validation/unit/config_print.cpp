// SPDX-License-Identifier: Apache-2.0
// What is printed about keys and values, and that it can be read back.
#include <gtest/gtest.h>

#include "config_support.hpp"

namespace tessera::config {
namespace {

const char* const deck =
    "[attention]\nsequence = \"1M\"\nsoftcap = 30\nschemes = [\"mesh\", \"ring\"]\nmesh.a = 2\n"
    "[run]\nname = \"a \\\"b\\\" \\\\ \\u0001\"\nlimit = \"00:01:30\"\n"
    "[[rates]]\nop = \"gemm\"\nflops = 1e11\n[[rates]]\nop = \"copy\"\nflops = 2.5\n";

TEST(config, printed_config_reads_back_equal) {
  const Config first = load_text(deck);
  const Config second = load_text(print_config(first));
  for (const Key& key : first.table().keys()) {
    switch (key.type) {
      case Type::boolean:
        EXPECT_EQ(first.boolean(key.name), second.boolean(key.name));
        break;
      case Type::integer:
      case Type::size:
        EXPECT_EQ(first.integer(key.name), second.integer(key.name));
        break;
      case Type::real:
      case Type::duration:
        EXPECT_EQ(first.real(key.name), second.real(key.name));
        break;
      case Type::text:
        EXPECT_EQ(first.text(key.name), second.text(key.name));
        break;
      case Type::texts:
        EXPECT_EQ(first.texts(key.name), second.texts(key.name));
        break;
    }
    EXPECT_TRUE(second.given(key.name)) << key.name;
  }
  ASSERT_EQ(second.list("rates").size(), 2u);
  EXPECT_EQ(second.list("rates")[0].real("rates.flops"), 1e11);
}

TEST(config, printed_config_shows_origin_unit_meaning) {
  const std::string text =
      print_config(load_text(deck, {"attention.head_dim=64", "attention.sequence=5"}));
  std::cout << text;
  for (const char* part : {"sequence = 5 ", "# --set", "[tokens] length of the query sequence",
                           "# deck.toml:3", "# default", "[attention.mesh]", "[[rates]]",
                           "# attention.sequence: 1048576 (deck.toml:2) overridden by --set: 5"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(config, reference_page_and_help_list_every_key) {
  const Table table = test_table();
  const std::string page = reference_page(table, "Keys"), text = help(table);
  for (const std::string& name : table.names()) {
    EXPECT_NE(page.find("| `" + name + "` |"), std::string::npos) << name;
    EXPECT_NE(text.find("  " + name), std::string::npos) << name;
  }
  EXPECT_NE(page.find("integer, at least 1, at most 512, default 128"), std::string::npos);
  EXPECT_NE(page.find("## [attention]"), std::string::npos);
  EXPECT_NE(page.find("## [[rates]]"), std::string::npos);
}

TEST(config, environment_name_of_key) {
  EXPECT_EQ(environment_name("attention.mesh.head_dim"), "TESSERA_ATTENTION__MESH__HEAD_DIM");
}

}  // namespace
}  // namespace tessera::config
