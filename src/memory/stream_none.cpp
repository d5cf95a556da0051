// SPDX-License-Identifier: Apache-2.0
// A build without CUDA: device queues are refused by name.
#include "base/error.hpp"
#include "memory/stream.hpp"

namespace tessera::memory {
namespace {

[[noreturn]] void refuse() {
  throw Error(Exit::environment, "a device queue: this build has no CUDA",
              "configure with -DTESSERA_CUDA=ON, or choose host memory");
}
void nothing(void*) {}

}  // namespace

void use_device(int) { refuse(); }
std::string device_uuid(int) { refuse(); }
std::array<std::int64_t, 2> device_memory() { refuse(); }

Event::Event(bool) : handle_(nullptr, nothing) { refuse(); }
void Event::record(void*) const { refuse(); }
bool Event::done() const { refuse(); }
void Event::wait() const { refuse(); }
double Event::seconds_between(const Event&, const Event&) { refuse(); }

Stream::Stream(Priority) : handle_(nullptr, nothing) { refuse(); }
void Stream::wait(const Event&) const { refuse(); }

Graph::Graph(void*, const std::function<void()>&) : exec_(nullptr, nothing) { refuse(); }
void Graph::launch(void*) const { refuse(); }

void write_word(void*, std::uint32_t*, std::uint32_t) { refuse(); }
void wait_word(void*, std::uint32_t*, std::uint32_t) { refuse(); }

SharedMemory share(const void*) { refuse(); }
OpenedMemory::OpenedMemory(const SharedMemory&) : data_(nullptr, nothing) { refuse(); }

Mark::Mark(const std::string&) {}
Mark::~Mark() = default;

}  // namespace tessera::memory
