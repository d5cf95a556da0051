// SPDX-License-Identifier: Apache-2.0
// Hosts and cores of the ranks, and whether launcher and MPI agree about the number of ranks.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <fstream>

#include "parallel/communicator.hpp"

namespace tessera::parallel {

namespace {

constexpr int mask_words = 128;  // 8192 processors

std::array<std::uint64_t, mask_words> affinity_mask() {
  std::array<std::uint64_t, mask_words> mask{};
  if (sched_getaffinity(0, sizeof mask, reinterpret_cast<cpu_set_t*>(mask.data())) != 0)
    mask[0] = 1;
  return mask;
}

/// Cores that one cgroup folder grants, 0 when it sets no limit.
double quota_in(const std::string& folder) {
  double quota = 0, period = 0;
  std::string text;
  if (std::ifstream v2(folder + "/cpu.max"); v2 >> text >> period) {
    return text == "max" || period <= 0 ? 0 : std::atof(text.c_str()) / period;
  }
  std::ifstream q(folder + "/cpu.cfs_quota_us"), p(folder + "/cpu.cfs_period_us");
  if (q >> quota && p >> period) return quota > 0 && period > 0 ? quota / period : 0;
  return 0;
}

/// The tightest processor quota on the way from this process's cgroup to the root; 0: none.
double cgroup_quota() {
  double least = 0;
  std::ifstream list("/proc/self/cgroup");
  for (std::string line; std::getline(list, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers.find("cpu") != 0) continue;
    const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      const double here = quota_in(root + (path == "/" ? "" : path));
      if (here > 0 && (least == 0 || here < least)) least = here;
      if (path.empty() || path.rfind('/') == std::string::npos) break;
    }
  }
  return least;
}

int cores_of(const std::array<std::uint64_t, mask_words>& mask) {
  int cores = 0;
  for (const std::uint64_t word : mask) cores += std::popcount(word);
  const int quota = static_cast<int>(cgroup_quota());
  return std::max(1, quota > 0 ? std::min(cores, quota) : cores);
}

}  // namespace

std::string host_name() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

int usable_cores() { return cores_of(affinity_mask()); }

Placement find_placement(const Communicator& comm) {
  MPI_Comm node = MPI_COMM_NULL;
  const int code =
      MPI_Comm_split_type(comm.handle(), MPI_COMM_TYPE_SHARED, comm.rank(), MPI_INFO_NULL, &node);
  if (code != MPI_SUCCESS) throw Error(Exit::communication, "MPI_Comm_split_type failed");
  Placement here;
  here.host = host_name();
  MPI_Comm_size(node, &here.ranks_on_host);
  MPI_Comm_rank(node, &here.rank_on_host);
  // Ranks that are bound own different cores, so the job has the union of their masks.
  auto mask = affinity_mask();
  MPI_Allreduce(MPI_IN_PLACE, mask.data(), mask_words, MPI_UINT64_T, MPI_BOR, node);
  MPI_Comm_free(&node);
  here.cores_on_host = cores_of(mask);
  std::int64_t hosts = 0;
  for (const std::int64_t r : comm.all_gather(std::int64_t{here.rank_on_host})) hosts += r == 0;
  here.num_hosts = static_cast<int>(hosts);
  here.oversubscribed =
      comm.all_reduce_max(std::int64_t{here.ranks_on_host > here.cores_on_host}) == 1;
  return here;
}

void check_launch(const Communicator& comm) {
  if (comm.size() > 1) return;
  const char* allowed = std::getenv("TESSERA_ALLOW_SINGLETON");
  if (allowed && std::string(allowed) == "1") return;
  // From the launcher nearest to the process outwards: "mpirun -n 1" inside a job of many tasks
  // says 1 and is right. Open MPI; MPICH and its kin; jsrun; Flux; srun; sbatch.
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "JSM_NAMESPACE_SIZE",
                               "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    const char* text = std::getenv(variable);
    if (!text) continue;
    const long tasks = std::strtol(text, nullptr, 10);
    if (tasks <= 1) return;
    throw Error(Exit::environment,
                fmt::format("{}={} tasks were started but MPI sees one rank", variable, tasks),
                "start through the launcher that belongs to this MPI: 'srun --mpi=pmix' or its "
                "own mpirun; TESSERA_ALLOW_SINGLETON=1 if one rank is meant");
  }
}

}  // namespace tessera::parallel
