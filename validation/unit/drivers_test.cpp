// SPDX-License-Identifier: Apache-2.0
// What the programs share: machine files, whole-file writing, the command line.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "drivers/common/command_line.hpp"
#include "drivers/common/machine_file.hpp"

namespace tessera::drivers {
namespace {

namespace fs = std::filesystem;

const std::string good = R"([machine]
name = "test"
ranks_per_node = 4
overlap = 0.5
memory_b_s = 1e10
step_overhead_s = "2us"
[machine.intra]
latency_s = 1.5e-6
bandwidth_b_s = 5e9
[machine.inter]
latency_s = "20us"
bandwidth_b_s = 1e9
[[rates]]
op = "attention.forward"
dtype = "f32"
flops_s = 9.25e10
overhead_s = 3e-5
)";

/// `good` with one text replaced by another.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = good;
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / ("tessera_drivers_" + std::to_string(getpid()));
    fs::create_directories(path_);
  }
  void TearDown() override { fs::remove_all(path_); }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path_ / name).rdbuf();
    return text.str();
  }
  fs::path path_;
};

TEST(drivers, machine_file_gives_every_value) {
  const plan::Machine m = parse_machine(good, "test.toml");
  EXPECT_EQ(m.name, "test");
  EXPECT_EQ(m.ranks_per_node, 4);
  EXPECT_EQ(m.cores_per_node, 0);
  EXPECT_EQ(m.overlap, 0.5);
  EXPECT_EQ(m.memory_b_s, 1e10);
  EXPECT_DOUBLE_EQ(m.step_overhead_s, 2e-6);
  EXPECT_DOUBLE_EQ(m.intra.latency_s, 1.5e-6);
  EXPECT_EQ(m.intra.bandwidth_b_s, 5e9);
  EXPECT_DOUBLE_EQ(m.inter.latency_s, 20e-6);
  EXPECT_EQ(m.inter.bandwidth_b_s, 1e9);
  ASSERT_EQ(m.rates.size(), 1u);
  EXPECT_EQ(m.rates[0].op, "attention.forward");
  EXPECT_EQ(m.rates[0].dtype, DType::f32);
  EXPECT_EQ(m.rates[0].flops_s, 9.25e10);
  EXPECT_DOUBLE_EQ(m.rates[0].overhead_s, 3e-5);
}

TEST(drivers, machine_file_written_reads_back) {
  plan::Machine m = parse_machine(good, "test.toml");
  m.intra.latency_s = 1.234567e-7;
  m.cores_per_node = 7;
  m.rates.push_back({"attention.backward", DType::bf16, 0, 1});
  const std::string text = machine_text(m, {"measured just now", "on two ranks"});
  EXPECT_EQ(text.substr(0, 36), "# measured just now\n# on two ranks\n[");
  const plan::Machine back = parse_machine(text, "back.toml");
  EXPECT_EQ(machine_text(back, {"measured just now", "on two ranks"}), text);
  EXPECT_NEAR(back.intra.latency_s, m.intra.latency_s, 1e-5 * m.intra.latency_s);
  EXPECT_EQ(back.cores_per_node, 7);
  ASSERT_EQ(back.rates.size(), 2u);
  EXPECT_EQ(back.rates[1].dtype, DType::bf16);
  EXPECT_EQ(back.rates[1].flops_s, 1);
}

TEST(drivers, machine_files_of_the_repository_are_complete) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(TESSERA_MACHINES)) {
    const plan::Machine m = read_machine(entry.path().string());
    EXPECT_EQ(m.name + ".toml", entry.path().filename().string());
    EXPECT_GE(m.intra.bandwidth_b_s, m.inter.bandwidth_b_s) << m.name;
    for (const char* op : {"attention.forward", "attention.backward"}) {
      for (const DType t : all_dtypes) {
        const auto has = [&](const plan::Rate& r) { return r.op == op && r.dtype == t; };
        EXPECT_EQ(std::count_if(m.rates.begin(), m.rates.end(), has), 1) << m.name << ' ' << op;
      }
    }
    ++files;
  }
  EXPECT_GE(files, 4);
}

TEST(drivers, machine_file_errors_name_the_key) {
  const struct {
    std::string text, expected;
  } cases[] = {
      {changed("overlap", "overlapp"), "overlapp"},
      {changed("overlap = 0.5", "overlap = 1.5"), "machine.overlap"},
      {changed("bandwidth_b_s = 5e9", "bandwidth_b_s = 0.0"), "machine.intra.bandwidth_b_s"},
      {changed("latency_s = 1.5e-6", "latency_s = \"fast\""), "machine.intra.latency_s"},
      {changed("name = \"test\"\n", ""), "machine.name"},
      {changed("\"f32\"", "\"f31\""), "f31"},
      {changed("ranks_per_node = 4", "ranks_per_node = 0"), "machine.ranks_per_node"},
  };
  for (const auto& c : cases) {
    try {
      parse_machine(c.text, "bad.toml");
      ADD_FAILURE() << "accepted: " << c.expected;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      EXPECT_NE(std::string(e.what()).find(c.expected), std::string::npos) << e.what();
    }
  }
}

TEST(drivers, machine_file_missing_is_an_io_error) {
  try {
    read_machine("no/such/machine.toml");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::io);
    EXPECT_NE(e.message().find("no/such/machine.toml"), std::string::npos);
  }
}

/// Parses `args` with one option and one flag; the result as text.
std::string parsed(std::vector<std::string> args) {
  args.insert(args.begin(), "program");
  std::vector<char*> argv;
  for (std::string& a : args) argv.push_back(a.data());
  CLI::App app("test", "program");
  int head_dim = 0;
  bool quick = false;
  app.add_option("--head-dim", head_dim)->check(CLI::Range(8, 256));
  app.add_flag("--quick", quick);
  app.set_version_flag("--version", std::string("1.2"));
  try {
    const auto done = parse_command_line(app, static_cast<int>(argv.size()), argv.data(), false);
    return done ? "done " + std::to_string(*done)
                : std::to_string(head_dim) + (quick ? " quick" : "");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    return e.what();
  }
}

TEST(drivers, command_line_values_and_mistakes) {
  EXPECT_EQ(parsed({"--head-dim", "64", "--quick"}), "64 quick");
  EXPECT_EQ(parsed({"--help"}), "done 0");
  EXPECT_EQ(parsed({"--version"}), "done 0");
  EXPECT_EQ(parsed({"--head-din=64"}),
            "unknown argument '--head-din'\n  try: did you mean '--head-dim'?");
  EXPECT_EQ(parsed({"--zzzzzzz"}), "unknown argument '--zzzzzzz'\n  try: --help lists all options");
  EXPECT_NE(parsed({"--head-dim", "4"}).find("--head-dim"), std::string::npos);
  EXPECT_NE(parsed({"--head-dim"}).find("--head-dim"), std::string::npos);
}

}  // namespace
}  // namespace tessera::drivers
