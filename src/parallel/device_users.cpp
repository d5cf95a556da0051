// SPDX-License-Identifier: Apache-2.0
#include "parallel/device_users.hpp"

#include <fmt/format.h>

#include <map>
#include <set>
#include <vector>

namespace tessera::parallel {

namespace {

/// "a, b, c and 5 more"
std::string listed(const std::vector<std::string>& items) {
  constexpr std::size_t most = 8;
  std::vector<std::string> shown(items.begin(), items.begin() + std::min(items.size(), most));
  const std::string text = fmt::format("{}", fmt::join(shown, ", "));
  return items.size() > most ? fmt::format("{} and {} more", text, items.size() - most) : text;
}

}  // namespace

void require_devices(std::span<const DeviceUser> users, const std::string& why) {
  std::set<std::string> lacking;
  for (const DeviceUser& user : users) {
    if (user.uuid.empty()) lacking.insert(user.host);
  }
  if (lacking.empty()) return;
  throw Error(Exit::environment,
              fmt::format("parallel.device = \"cuda\": {} on host{} {}", why,
                          lacking.size() == 1 ? "" : "s", listed({lacking.begin(), lacking.end()})),
              "ask the scheduler for GPUs, look at nvidia-smi and CUDA_VISIBLE_DEVICES there, or "
              "set parallel.device = \"host\"");
}

Device count_users(std::span<const DeviceUser> users, int rank, bool share) {
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> ranks_of;
  for (std::size_t r = 0; r < users.size(); ++r)
    ranks_of[{users[r].host, users[r].uuid}].push_back(fmt::format("{}", r));

  Device found;
  found.uuid = users[rank].uuid;
  found.num_devices = static_cast<int>(ranks_of.size());
  found.ranks_on_device =
      static_cast<int>(ranks_of.at({users[rank].host, users[rank].uuid}).size());
  for (const auto& [device, ranks] : ranks_of) {
    if (ranks.size() == 1) continue;
    found.shared = true;
    if (share) continue;
    throw Error(Exit::environment,
                fmt::format("ranks {} compute on one GPU, {} of host {}", listed(ranks),
                            device.second, device.first),
                "start one rank per GPU and let every rank see all GPUs of its host or one of its "
                "own, or set parallel.share_device = true");
  }
  return found;
}

}  // namespace tessera::parallel
