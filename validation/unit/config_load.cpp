// SPDX-License-Identifier: Apache-2.0
// Values, priorities and sources of a configuration that is right.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "config_support.hpp"

namespace tessera::config {
namespace {

TEST(config, defaults_are_typed_and_marked) {
  const Config c = load_text("");
  EXPECT_EQ(c.integer("attention.sequence"), 8192);
  EXPECT_EQ(c.real("attention.softcap"), 0.0);
  EXPECT_EQ(c.texts("attention.schemes"), Texts{"ring"});
  EXPECT_TRUE(c.boolean("verify.enabled"));
  EXPECT_EQ(c.origin("attention.sequence"), "default");
  EXPECT_FALSE(c.given("attention.sequence"));
}

TEST(config, file_values_carry_their_line) {
  const Config c = load_text(
      "# deck\n[attention]\nsequence = \"1M\"\nschemes = [\"ring\", \"mesh\"]\n"
      "mesh.a = 2\nsoftcap = 30\n[run]\nlimit = \"01:00:30\"\n");
  EXPECT_EQ(c.integer("attention.sequence"), 1 << 20);
  EXPECT_EQ(c.texts("attention.schemes"), (Texts{"ring", "mesh"}));
  EXPECT_EQ(c.integer("attention.mesh.a"), 2);
  EXPECT_EQ(c.real("attention.softcap"), 30.0);
  EXPECT_EQ(c.real("run.limit"), 3630.0);
  EXPECT_EQ(c.origin("attention.sequence"), "deck.toml:3");
  EXPECT_EQ(c.origin("run.limit"), "deck.toml:8");
}

TEST(config, integer_sizes_and_second_durations_are_taken_as_they_are) {
  const Config c = load_text("attention.sequence = 1000\nrun.limit = 2.5\n");
  EXPECT_EQ(c.integer("attention.sequence"), 1000);
  EXPECT_EQ(c.real("run.limit"), 2.5);
}

TEST(config, priority_default_file_environment_set) {
  const Config c = load_text(
      "[attention]\nhead_dim = 64\nsequence = 100\nmask = \"full\"\n", {"attention.head_dim=256"},
      {{"TESSERA_ATTENTION__HEAD_DIM", "96"}, {"TESSERA_ATTENTION__SEQUENCE", "2K"}});
  EXPECT_EQ(c.integer("attention.head_dim"), 256);
  EXPECT_EQ(c.origin("attention.head_dim"), "--set");
  EXPECT_EQ(c.integer("attention.sequence"), 2048);
  EXPECT_EQ(c.origin("attention.sequence"), "environment TESSERA_ATTENTION__SEQUENCE");
  EXPECT_EQ(c.text("attention.mask"), "full");
}

TEST(config, overridden_values_are_listed) {
  const Config c = load_text("[attention]\nhead_dim = 64\n", {"attention.head_dim=256"});
  ASSERT_EQ(c.overridden().size(), 1u);
  EXPECT_EQ(c.overridden()[0], "attention.head_dim: 64 (deck.toml:2) overridden by --set: 256");
  EXPECT_TRUE(load_text("", {"attention.head_dim=256"}).overridden().empty());
}

TEST(config, set_forms_of_every_type) {
  const Config c = load_text(
      "", {"attention.schemes=ring,mesh", "attention.sequence=8M", "attention.softcap=1e1",
           "run.limit=00:10:00", "run.name=a = b, \"c\"", "verify.enabled=false"});
  EXPECT_EQ(c.texts("attention.schemes"), (Texts{"ring", "mesh"}));
  EXPECT_EQ(c.integer("attention.sequence"), 8 << 20);
  EXPECT_EQ(c.real("attention.softcap"), 10.0);
  EXPECT_EQ(c.real("run.limit"), 600.0);
  EXPECT_EQ(c.text("run.name"), "a = b, \"c\"");
  EXPECT_FALSE(c.boolean("verify.enabled"));
  EXPECT_EQ(load_text("", {"attention.schemes=[\"mesh\", \"ring\"]"}).texts("attention.schemes"),
            (Texts{"mesh", "ring"}));
  EXPECT_EQ(load_text("", {"run.limit=90"}).real("run.limit"), 90.0);
}

TEST(config, list_of_tables_in_file_order) {
  const Config c =
      load_text("[[rates]]\nop = \"gemm\"\nflops = 1e11\n[[rates]]\nop = \"copy\"\nflops = 5\n");
  const auto& rates = c.list("rates");
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates[0].text("rates.op"), "gemm");
  EXPECT_EQ(rates[1].real("rates.flops"), 5.0);
  EXPECT_EQ(rates[1].origin("rates.op"), "deck.toml:5");
  EXPECT_TRUE(load_text("").list("rates").empty());
}

TEST(config, undeclared_or_wrongly_typed_use_is_a_programming_error) {
  const Config c = load_text("");
  EXPECT_THROW(c.integer("attention.sequnce"), std::logic_error);
  EXPECT_THROW(c.text("attention.head_dim"), std::logic_error);
  EXPECT_THROW(c.list("rate"), std::logic_error);
}

TEST(config, contradictory_declarations_are_refused) {
  const Key good{.name = "a.b", .type = Type::integer, .fallback = 1, .meaning = "m"};
  Key no_section = good, bad_default = good, no_meaning = good;
  no_section.name = "b";
  bad_default.minimum = 2;
  no_meaning.meaning = "";
  for (const auto& keys : {std::vector<Key>{no_section}, std::vector<Key>{bad_default},
                           std::vector<Key>{no_meaning}, std::vector<Key>{good, good}})
    EXPECT_THROW(Table{keys}, std::logic_error);
  EXPECT_NO_THROW(Table({good}));
}

TEST(config, sources_survive_packing) {
  const Sources s{
      "d.toml", std::string("a\0\xff\n", 4), {"a.b=1", "c.d=\"x\""}, {{"TESSERA_A__B", "2"}}};
  const Sources t = unpack(pack(s));
  EXPECT_EQ(t.path, s.path);
  EXPECT_EQ(t.text, s.text);
  EXPECT_EQ(t.sets, s.sets);
  EXPECT_EQ(t.environment, s.environment);
}

TEST(config, sources_read_file_and_only_key_variables) {
  const auto path = std::filesystem::temp_directory_path() / "tessera_config_sources.toml";
  std::ofstream(path) << "[run]\nname = \"x\"\n";
  setenv("TESSERA_RUN__NAME", "y", 1);
  setenv("TESSERA_MPIRUN", "mpirun", 1);  // for a script, names no key
  const Sources s = read_sources(path.string());
  unsetenv("TESSERA_RUN__NAME");
  unsetenv("TESSERA_MPIRUN");
  std::filesystem::remove(path);
  EXPECT_EQ(s.text, "[run]\nname = \"x\"\n");
  EXPECT_EQ(s.environment.at("TESSERA_RUN__NAME"), "y");
  EXPECT_FALSE(s.environment.contains("TESSERA_MPIRUN"));
  EXPECT_EQ(load(test_table(), s).text("run.name"), "y");
}

TEST(config, empty_file_is_a_deck_of_defaults) {
  const auto path = std::filesystem::temp_directory_path() / "tessera_config_empty.toml";
  std::ofstream(path).close();
  EXPECT_EQ(load(test_table(), path.string()).integer("attention.head_dim"), 128);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tessera::config
