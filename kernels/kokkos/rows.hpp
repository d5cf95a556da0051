// SPDX-License-Identifier: Apache-2.0
// Rows of tensors over an execution space. What is done to one row is written once and reaches its
// elements through `lanes`: one after the other on the host, side by side on a device.
#pragma once

#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/kokkos/views.hpp"
#include "ops/call.hpp"

namespace tessera::kernels::portable {

/// Lanes of the host: f(0), f(1), ... in one thread.
struct OneByOne {
  template <class F>
  KOKKOS_INLINE_FUNCTION void each(std::int64_t n, const F& f) const {
    for (std::int64_t c = 0; c < n; ++c) f(c);
  }
  template <class A, class F>
  KOKKOS_INLINE_FUNCTION A sum(std::int64_t n, const F& f) const {
    A total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t c = 0; c < n; ++c) total += f(c);
    return total;
  }
  template <class F>
  KOKKOS_INLINE_FUNCTION void once(const F& f) const {
    f();
  }
};

/// Lanes of a device: the vector lanes of one thread of a team, a warp of a GPU. Element c of a row
/// is always in the same lane. What is outside of these calls is done by all lanes alike.
template <class Exec>
class SideBySide {
 public:
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;

  KOKKOS_INLINE_FUNCTION explicit SideBySide(const Member& member) : member_(member) {}

  template <class F>
  KOKKOS_INLINE_FUNCTION void each(std::int64_t n, const F& f) const {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(member_, n), f);
  }
  /// The sum is known to all lanes.
  template <class A, class F>
  KOKKOS_INLINE_FUNCTION A sum(std::int64_t n, const F& f) const {
    A total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(member_, n), [&](std::int64_t c, A& part) { part += f(c); },
        total);
    return total;
  }
  template <class F>
  KOKKOS_INLINE_FUNCTION void once(const F& f) const {
    Kokkos::single(Kokkos::PerThread(member_), f);
  }
  /// `n` numbers of this row's scratch memory, uninitialised.
  template <class A>
  KOKKOS_INLINE_FUNCTION A* take(std::int64_t n) const {
    return static_cast<A*>(member_.thread_scratch(0).get_shmem(n * sizeof(A)));
  }

 private:
  const Member& member_;
};

template <class Exec>
using LanesOf = std::conditional_t<is_device<Exec>, SideBySide<Exec>, OneByOne>;

/// The instance of a space that takes the work of a call. That of a stream is made by the first
/// call on it, which allocates a little, and kept until Kokkos ends.
template <class Exec>
Exec space_of(const ops::Call&) {
  return Exec();
}
#ifdef TESSERA_KOKKOS_CUDA
template <>
Kokkos::Cuda space_of<Kokkos::Cuda>(const ops::Call& call);
#endif

template <class Exec, class Body>
struct TeamRows {
  Body body;
  std::int64_t outer, inner;

  KOKKOS_INLINE_FUNCTION void operator()(const typename SideBySide<Exec>::Member& member) const {
    const std::int64_t row =
        std::int64_t{member.league_rank()} * member.team_size() + member.team_rank();
    if (row < outer * inner) body(row / inner, row % inner, SideBySide<Exec>(member));
  }
};

template <class Body>
struct HostRows {
  Body body;
  std::int64_t inner;

  void operator()(std::int64_t i) const {
    for (std::int64_t j = 0; j < inner; ++j) body(i, j, OneByOne());
  }
};

/// body(i, j, lanes) for i in [0, outer), j in [0, inner), each on a thread of a team with
/// `scratch` bytes of its own for at most two arrays. Does not wait for them.
template <class Exec, class Body>
void every_team_row(const char* label, const Exec& space, std::int64_t outer, std::int64_t inner,
                    std::int64_t scratch, const Body& body) {
  if (outer * inner <= 0) return;
  static_assert(sizeof(TeamRows<Exec, Body>) < 3584, "4096 bytes go along with a launch");
  constexpr int threads = is_device<Exec> ? 4 : 1, lanes = is_device<Exec> ? 32 : 1;
  const auto teams = static_cast<int>((outer * inner + threads - 1) / threads);
  Kokkos::TeamPolicy<Exec> policy(space, teams, threads, lanes);
  policy.set_scratch_size(0, Kokkos::PerThread(static_cast<int>(scratch + 16)));
  // Light: arguments go along with the launch. In constant memory, where larger ones are put
  // otherwise, they would make the host wait for earlier kernels and could not be captured.
  Kokkos::parallel_for(label,
                       Kokkos::Experimental::require(
                           policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight),
                       TeamRows<Exec, Body>{body, outer, inner});
}

/// body(i, j, lanes) for i in [0, outer), j in [0, inner): on the host done on return, on a device
/// put on the call's stream.
template <class Exec, class Body>
void every_row(const char* label, const ops::Call& call, std::int64_t outer, std::int64_t inner,
               const Body& body) {
  if constexpr (is_device<Exec>) {
    every_team_row(label, space_of<Exec>(call), outer, inner, 0, body);
  } else {
    using Policy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>;
    if (outer <= 0) return;
    Kokkos::parallel_for(label, Policy(Exec(), 0, outer), HostRows<Body>{body, inner});
    Exec().fence();
  }
}

/// f(std::type_identity<Exec>) with the execution space that reaches the memory of the call.
template <class F>
void visit_space([[maybe_unused]] const ops::Call& call, F&& f) {
#ifdef TESSERA_KOKKOS_CUDA
  if (call.args[0].space == Space::cuda) return f(std::type_identity<Kokkos::Cuda>());
#endif
  f(std::type_identity<HostSpace>());
}

/// From one element type to another; 16 bits are reached by way of f32.
#ifdef __NVCC__
#pragma nv_exec_check_disable  // see views.hpp
#endif
template <class To, class From>
KOKKOS_INLINE_FUNCTION To convert(From x) {
  if constexpr (std::is_same_v<From, To>) {
    return x;
  } else if constexpr (sizeof(To) == 2) {
    return To(static_cast<float>(x));
  } else {
    return static_cast<To>(x);
  }
}

/// to <- keep * to + add * from. A side of weight 0 is not read: it may hold anything.
template <class Lanes, class A>
KOKKOS_INLINE_FUNCTION void blend(const Lanes& lanes, std::int64_t n, A keep, A* to, A add,
                                  const A* from) {
  if (add == 0) {
    if (keep == 1) return;
    lanes.each(n, [=](std::int64_t c) { to[c] *= keep; });
  } else if (keep == 0) {
    lanes.each(n, [=](std::int64_t c) { to[c] = add * from[c]; });
  } else {
    lanes.each(n, [=](std::int64_t c) { to[c] = keep * to[c] + add * from[c]; });
  }
}

/// (o, lse) of one row <- its merge with (part, other) (attention brief 1.2).
template <class Lanes, class A>
KOKKOS_INLINE_FUNCTION void merge_row(const Lanes& lanes, std::int64_t n, A* o, A& lse,
                                      const A* part, A other) {
  const A mine = lse, top = mine < other ? other : mine;
  if (mine == minus_infinity<A> && other == minus_infinity<A>) return;  // (0, -inf) stays
  const A keep = std::exp(mine - top), add = std::exp(other - top), sum = keep + add;
  blend(lanes, n, keep / sum, o, add / sum, part);
  lanes.once([&] { lse = top + std::log(sum); });
}

}  // namespace tessera::kernels::portable
