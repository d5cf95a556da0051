// SPDX-License-Identifier: Apache-2.0
#include "parallel/device.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "memory/cuda.hpp"
#include "memory/stream.hpp"
#include "parallel/device_users.hpp"

namespace tessera::parallel {

namespace {

/// A DeviceUser as it travels.
struct Card {
  std::array<char, 256> host{};
  std::array<char, 64> uuid{};
};

template <std::size_t N>
void put(std::array<char, N>& to, const std::string& text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}

std::vector<DeviceUser> gather(const Communicator& comm, const DeviceUser& mine) {
  Card card;
  put(card.host, mine.host);
  put(card.uuid, mine.uuid);
  const auto bytes = comm.all_gather_bytes(std::as_bytes(std::span(&card, 1)));
  std::vector<Card> cards(bytes.size() / sizeof(Card));
  std::memcpy(cards.data(), bytes.data(), bytes.size());
  std::vector<DeviceUser> users;
  for (const Card& c : cards) users.push_back({c.host.data(), c.uuid.data()});
  return users;
}

}  // namespace

Device choose_device(const Communicator& comm, const Placement& placement, bool share) {
  const int visible = memory::device_count();
  const int number = visible > 0 ? placement.rank_on_host % visible : 0;
  DeviceUser mine{placement.host, ""};
  together(comm, [&] {
    if (visible == 0) return;
    memory::use_device(number);
    mine.uuid = memory::device_uuid(number);
  });
  const std::vector<DeviceUser> users = gather(comm, mine);
  Device device;
  // All ranks look at the same list, so all throw the same Error.
  together(comm, [&] {
    require_devices(users, "no GPU or no driver");
    device = count_users(users, comm.rank(), share);
  });
  device.number = number;
  device.text = memory::describe_device();
  return device;
}

}  // namespace tessera::parallel
