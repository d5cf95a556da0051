// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/dup_filter_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <chrono>
#include <memory>

namespace tessera::log {
namespace {

std::unique_ptr<spdlog::logger> make_logger(int rank, const std::string& host) {
  auto filter = std::make_shared<spdlog::sinks::dup_filter_sink_mt>(std::chrono::seconds(5));
  filter->add_sink(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto logger = std::make_unique<spdlog::logger>("tessera", filter);
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  logger->set_pattern(rank == 0 ? "%l: %v" : fmt::format("[rank {} {}] %l: %v", rank, host));
  logger->flush_on(spdlog::level::info);
  return logger;
}

std::unique_ptr<spdlog::logger>& logger() {
  static std::unique_ptr<spdlog::logger> instance = make_logger(0, "");
  return instance;
}

}  // namespace

void setup(int rank, const std::string& host) { logger() = make_logger(rank, host); }

// The text goes in as an argument: braces in it are not a format.
void info(const std::string& text) { logger()->info("{}", text); }
void warn(const std::string& text) { logger()->warn("{}", text); }
void error(const std::string& text) { logger()->error("{}", text); }

}  // namespace tessera::log
