// SPDX-License-Identifier: Apache-2.0
// The JSON of a program read back by a strict reader, and the table of one rank.
#include "plan/export.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "plan_ring.hpp"

namespace tessera::plan {
namespace {

using testing::ring_program;

TEST(PlanExport, json_holds_every_step) {
  Program program = ring_program(3);
  program.name = "a\"b\\c";
  std::stringstream text;
  write_json(program, text);
  const auto json = nlohmann::json::parse(text.str());
  EXPECT_EQ(json["name"], program.name);
  EXPECT_EQ(json["axes"][0]["groups"][0], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(json["coverage"].size(), 9u);
  ASSERT_EQ(json["ranks"].size(), 3u);
  for (int r = 0; r < 3; ++r) {
    const Plan& plan = program.plans[r];
    const auto& rank = json["ranks"][r];
    EXPECT_EQ(rank["rank"], r);
    EXPECT_EQ(rank["queues"][1]["kind"], "comm");
    EXPECT_EQ(rank["buffers"][3]["statistic"], true);
    ASSERT_EQ(rank["steps"].size(), plan.steps.size());
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      const auto& entry = rank["steps"][s];
      EXPECT_EQ(entry["step"], s);
      EXPECT_EQ(entry["label"], std::string(step.label));
      EXPECT_EQ(entry.value("after", nlohmann::json::array()).size(), step.num_after);
      EXPECT_EQ(entry["uses"].size(), step.num_use);
      if (is_comm(step.kind)) {
        EXPECT_EQ(entry["bytes"], step.comm.bytes);
      }
      EXPECT_EQ(entry.contains("peer"), step.kind == StepKind::send || step.kind == StepKind::recv);
    }
  }
}

TEST(PlanExport, empty_program_is_strict_json) {
  std::stringstream text;
  write_json({}, text);
  EXPECT_TRUE(nlohmann::json::parse(text.str())["ranks"].empty());
}

TEST(PlanExport, failing_stream_is_an_error) {
  std::stringstream text;
  text.setstate(std::ios::badbit);
  EXPECT_THROW(write_json(ring_program(2), text), Error);
}

TEST(PlanExport, table_has_one_aligned_line_per_step) {
  const Program program = ring_program(3);
  const std::string table = table_of(program, 1);
  std::printf("%s", table.c_str());
  std::istringstream lines(table);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "ring of 3, rank 1 of 3");
  std::getline(lines, line);
  const auto label = line.find("label"), waits = line.find("waits for");
  ASSERT_NE(waits, std::string::npos);
  for (const Step& step : program.plans[1].steps) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(line.substr(label, step.label.size()), step.label);
    EXPECT_EQ(line.size() > waits, step.num_after > 0) << line;
  }
  EXPECT_FALSE(std::getline(lines, line));
  EXPECT_THROW(table_of(program, 3), Error);
}

}  // namespace
}  // namespace tessera::plan
