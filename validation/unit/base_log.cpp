// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

std::string logged(int rank, const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  log::setup(rank, "node7");
  body();
  log::setup(0, "");
  return testing::internal::GetCapturedStderr();
}

TEST(base, log_rank0_logs_info_without_prefix) {
  EXPECT_EQ(logged(0, [] { log::info("{} tokens", 4); }), "info: 4 tokens\n");
}

TEST(base, log_other_ranks_only_warn_with_prefix) {
  const std::string text = logged(3, [] {
    log::info("quiet");
    log::warn("slow {}", "link");
  });
  EXPECT_EQ(text, "[rank 3 node7] warning: slow link\n");
}

TEST(base, log_braces_in_plain_text_are_kept) {
  EXPECT_EQ(logged(0, [] { log::info(std::string("{not a format}")); }), "info: {not a format}\n");
}

TEST(base, log_repeats_are_merged_and_counted) {
  const std::string text = logged(0, [] {
    for (int i = 0; i < 100; ++i) log::warn(std::string("again"));
    log::warn(std::string("other"));
  });
  EXPECT_EQ(text, "warning: again\ninfo: Skipped 99 duplicate messages..\nwarning: other\n");
}

}  // namespace
}  // namespace tessera
