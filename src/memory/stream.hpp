// SPDX-License-Identifier: Apache-2.0
// Device queues without a CUDA type in sight: streams, events, captured graphs, words that streams
// write and wait for, and memory of another process. Built from stream.cpp, or from
// stream_none.cpp where there is no CUDA, which refuses by name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tessera::memory {

/// Makes `device` the current one of this process's threads that call it. Error(environment).
void use_device(int device);
/// "GPU-1f2e..." of a device: the same in all processes, whatever CUDA_VISIBLE_DEVICES hides.
std::string device_uuid(int device);
/// Free and total bytes of the current device.
std::array<std::int64_t, 2> device_memory();

/// A point in a stream. Timed ones can be subtracted.
class Event {
 public:
  explicit Event(bool timed = false);
  void record(void* stream) const;
  bool done() const;  ///< Error(environment) when the device failed
  void wait() const;  ///< the host waits, without burning a core
  void* handle() const { return handle_.get(); }
  /// Seconds from a to b; both timed and done.
  static double seconds_between(const Event& a, const Event& b);

 private:
  std::unique_ptr<void, void (*)(void*)> handle_;
};

/// A device queue of its own, not ordered with any other.
class Stream {
 public:
  /// Transfers go first where the device has to choose.
  enum class Priority : std::uint8_t { normal, high };
  explicit Stream(Priority priority = Priority::normal);
  void* handle() const { return handle_.get(); }
  void wait(const Event& event) const;  ///< later work of the stream waits for the event

 private:
  std::unique_ptr<void, void (*)(void*)> handle_;
};

/// Work of several streams recorded once and launched as one piece.
class Graph {
 public:
  /// Records what `body` puts on `origin` and on streams that wait for it and are joined again.
  Graph(void* origin, const std::function<void()>& body);
  void launch(void* stream) const;

 private:
  std::unique_ptr<void, void (*)(void*)> exec_;
};

/// Writes a word of device or pinned memory (of this process or opened from another one) once all
/// earlier work of the stream is done and visible.
void write_word(void* stream, std::uint32_t* word, std::uint32_t value);
/// Later work of the stream waits until the word equals the value; no multiprocessor is used.
void wait_word(void* stream, std::uint32_t* word, std::uint32_t value);

/// Device memory as another process of this host can open it.
struct SharedMemory {
  std::array<std::byte, 64> handle{};
  std::int64_t offset = 0;  ///< of the pointer in its allocation
};
SharedMemory share(const void* data);
/// Memory of another process, mapped; closed with the object.
class OpenedMemory {
 public:
  explicit OpenedMemory(const SharedMemory& from);
  void* data() const { return data_.get(); }  ///< start of the allocation

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

/// Names a span of host time in profilers (NVTX), from construction to the end of the scope.
class Mark {
 public:
  explicit Mark(const std::string& name);
  ~Mark();
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
};

}  // namespace tessera::memory
