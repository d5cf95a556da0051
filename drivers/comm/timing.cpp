// SPDX-License-Identifier: Apache-2.0
#include "drivers/comm/timing.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

namespace tessera::drivers {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double processor_s() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double median_time(int repeats, const std::function<void()>& body, double (*clock)()) {
  body();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const double begin = clock();
    body();
    times.push_back(clock() - begin);
  }
  return median(times);
}

void sleeping_barrier(const parallel::Communicator& comm) {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(comm.handle(), &request) != MPI_SUCCESS)
    throw Error(Exit::communication, "MPI_Ibarrier failed");
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done) return;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace tessera::drivers
