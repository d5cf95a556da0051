// SPDX-License-Identifier: Apache-2.0
// The plan vocabulary (architecture section 1): plain data that is checked, counted, simulated,
// executed and explained. Nothing here knows MPI, CUDA, a scheme or a configuration key.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/range.hpp"

namespace tessera::plan {

enum class StepKind : std::uint8_t { compute, copy, send, recv, all_reduce };
enum class QueueKind : std::uint8_t { compute, comm };
enum class Access : std::uint8_t { read, write, update };
/// input/output: bound by name to the caller's tensors; saved: outlives the pass (forward keeps it
/// for backward) and is bound by name too; scratch: lives inside one execution of the plan.
enum class Role : std::uint8_t { input, output, saved, scratch };

/// A buffer of up to three dimensions, dense and row-major.
struct Buffer {
  std::string name;
  Role role = Role::scratch;
  DType dtype = DType::f32;
  std::array<std::int64_t, 3> shape{0, 0, 1};
  bool statistic = false;  ///< LSE or Delta: left out of the volume in units of U

  std::int64_t elements() const { return shape[0] * shape[1] * shape[2]; }
  std::int64_t bytes() const { return elements() * size_of(dtype); }
};

/// The part of a buffer that a step touches: ranges of its first two dimensions, all of the third.
struct Use {
  std::int32_t buffer = -1;
  Access access = Access::read;
  Range d0, d1;
};

inline bool writes(const Use& use) { return use.access != Access::read; }
/// Both touch the same memory.
inline bool overlap(const Use& a, const Use& b) {
  return a.buffer == b.buffer && a.d0.overlaps(b.d0) && a.d1.overlaps(b.d1);
}
/// And one of them writes it.
inline bool conflict(const Use& a, const Use& b) {
  return overlap(a, b) && (writes(a) || writes(b));
}

/// What a step works on; which meaning i and j have follows from the kind.
struct Index {
  enum class Kind : std::uint8_t { none, tile, chunk };
  Kind kind = Kind::none;
  std::int32_t i = -1;  ///< tile: Q chunk; chunk: owner
  std::int32_t j = -1;  ///< tile: KV chunk (or head block)
  auto operator<=>(const Index&) const = default;
};
constexpr Index tile(int q, int k) { return {Index::Kind::tile, q, k}; }
constexpr Index chunk(int owner) { return {Index::Kind::chunk, owner, -1}; }

struct Comm {
  std::int16_t axis = -1;  ///< index into Program::axes
  std::int32_t peer = -1;  ///< rank of the program, for send and recv
  std::int32_t key = -1;   ///< a send and a recv match when (source, destination, axis, key) do
  std::int64_t bytes = 0;  ///< payload, counted by Communicator as well
};

struct Work {
  std::string_view op;  ///< operator name, a constant
  double flops = 0;     ///< of unmasked cells only
  double bytes = 0;     ///< memory touched, for bandwidth-bound operators
};

struct Step {
  StepKind kind = StepKind::compute;
  std::int8_t queue = 0;
  /// Neighbouring comm steps of one queue with the same group >= 0 start and complete together
  /// (one NCCL group, one set of MPI requests). -1: the step is alone.
  std::int32_t group = -1;
  std::string_view label;  ///< from the constants of the owning room, "attn.fwd.tile"
  Index index;
  Comm comm;
  Work work;
  std::uint32_t first_after = 0, num_after = 0;  ///< into Plan::after_pool
  std::uint32_t first_use = 0, num_use = 0;      ///< into Plan::use_pool
};

struct Queue {
  QueueKind kind = QueueKind::compute;
  std::string name;
};

/// One rank's part. Steps stand in an order in which running them one by one would be right;
/// the order inside a queue is the order of its steps in this list.
struct Plan {
  std::vector<Buffer> buffers;
  std::vector<Queue> queues;
  std::vector<Step> steps;
  std::vector<std::int32_t> after_pool;
  std::vector<Use> use_pool;

  std::span<const std::int32_t> after(const Step& s) const {
    return {after_pool.data() + s.first_after, s.num_after};
  }
  std::span<const Use> uses(const Step& s) const {
    return {use_pool.data() + s.first_use, s.num_use};
  }
};

/// Bytes of the part of a buffer that a use names; the use must be within the plan.
inline std::int64_t bytes_of(const Plan& plan, const Use& use) {
  const Buffer& buffer = plan.buffers[use.buffer];
  return use.d0.size() * use.d1.size() * buffer.shape[2] * size_of(buffer.dtype);
}

constexpr bool is_comm(StepKind kind) {
  return kind == StepKind::send || kind == StepKind::recv || kind == StepKind::all_reduce;
}

/// A named family of disjoint groups of ranks.
struct Axis {
  std::string name;
  std::vector<std::vector<std::int32_t>> groups;
};

/// A piece of work that must be done exactly once over all ranks.
struct WorkItem {
  std::string_view label;
  Index index;
  auto operator<=>(const WorkItem&) const = default;
};

struct Program {
  std::string name;  ///< "mesh 4x2 forward"
  std::vector<Axis> axes;
  std::vector<Plan> plans;         ///< one per rank
  std::vector<WorkItem> coverage;  ///< every item exactly once; steps with other labels are free
};

}  // namespace tessera::plan
