// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#include <cuda.h>
#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "memory/cuda_check.hpp"

namespace tessera::memory {
namespace {

void check_driver(CUresult code, const char* what) {
  if (code != CUDA_SUCCESS)
    throw Error(Exit::environment, fmt::format("{} failed: driver error {}", what, int(code)));
}

CUdeviceptr address(std::uint32_t* word) { return reinterpret_cast<CUdeviceptr>(word); }

cudaEvent_t event_of(const Event& e) { return static_cast<cudaEvent_t>(e.handle()); }

}  // namespace

void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

std::string device_uuid(int device) {
  cudaDeviceProp prop{};
  check(cudaGetDeviceProperties(&prop, device), "cudaGetDeviceProperties");
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(prop.uuid.bytes[i]));
  }
  return text;
}

std::array<std::int64_t, 2> device_memory() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

Event::Event(bool timed)
    : handle_(nullptr, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); }) {
  cudaEvent_t event = nullptr;
  check(
      cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : unsigned{cudaEventDisableTiming}),
      "cudaEventCreate");
  handle_.reset(event);
}

void Event::record(void* stream) const {
  check(cudaEventRecord(event_of(*this), stream_of(stream)), "cudaEventRecord");
}

bool Event::done() const {
  const cudaError_t code = cudaEventQuery(event_of(*this));
  if (code == cudaErrorNotReady) return false;
  check(code, "the device's work");
  return true;
}

void Event::wait() const {
  while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

double Event::seconds_between(const Event& a, const Event& b) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, event_of(a), event_of(b)), "cudaEventElapsedTime");
  return ms * 1e-3;
}

Stream::Stream(Priority priority)
    : handle_(nullptr, [](void* s) { cudaStreamDestroy(stream_of(s)); }) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == Priority::high ? greatest : least),
        "cudaStreamCreate");
  handle_.reset(stream);
}

void Stream::wait(const Event& event) const {
  check(cudaStreamWaitEvent(stream_of(handle()), event_of(event), 0), "cudaStreamWaitEvent");
}

Graph::Graph(void* origin, const std::function<void()>& body)
    : exec_(nullptr, [](void* g) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); }) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_of(origin), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream_of(origin), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(stream_of(origin), &graph), "cudaStreamEndCapture");
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, cudaError_t (*)(cudaGraph_t)> owner(
      graph, cudaGraphDestroy);
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  exec_.reset(exec);
  check(cudaGraphUpload(exec, stream_of(origin)), "cudaGraphUpload");
}

void Graph::launch(void* stream) const {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec_.get()), stream_of(stream)),
        "cudaGraphLaunch");
}

void write_word(void* stream, std::uint32_t* word, std::uint32_t value) {
  static const auto write =
      driver_function<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
  check_driver(write(stream_of(stream), address(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue32");
}

void wait_word(void* stream, std::uint32_t* word, std::uint32_t value) {
  static const auto wait = driver_function<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
  check_driver(wait(stream_of(stream), address(word), value, CU_STREAM_WAIT_VALUE_EQ),
               "cuStreamWaitValue32");
}

SharedMemory share(const void* data) {
  static const auto range =
      driver_function<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");
  CUdeviceptr base = 0;
  check_driver(range(&base, nullptr, reinterpret_cast<CUdeviceptr>(data)), "cuMemGetAddressRange");
  SharedMemory out;
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(base)), "cudaIpcGetMemHandle");
  static_assert(sizeof handle == sizeof out.handle);
  std::memcpy(out.handle.data(), &handle, sizeof handle);
  out.offset = static_cast<std::int64_t>(reinterpret_cast<CUdeviceptr>(data) - base);
  return out;
}

OpenedMemory::OpenedMemory(const SharedMemory& from)
    : data_(nullptr, [](void* p) { cudaIpcCloseMemHandle(p); }) {
  cudaIpcMemHandle_t handle{};
  std::memcpy(&handle, from.handle.data(), sizeof handle);
  void* data = nullptr;
  check(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
  data_.reset(data);
}

Mark::Mark(const std::string& name) { nvtxRangePushA(name.c_str()); }
Mark::~Mark() { nvtxRangePop(); }

}  // namespace tessera::memory
