// SPDX-License-Identifier: Apache-2.0
// Labels of the steps of attention plans. Traces, golden files and tests key on them.
#pragma once

#include <string_view>

namespace tessera::attention::label {

inline constexpr std::string_view forward_tile = "attn.fwd.tile";
inline constexpr std::string_view forward_merge = "attn.fwd.merge";
inline constexpr std::string_view forward_reset = "attn.fwd.reset";
inline constexpr std::string_view forward_sink = "attn.fwd.sink";
inline constexpr std::string_view forward_store = "attn.fwd.store";
inline constexpr std::string_view backward_tile = "attn.bwd.tile";
inline constexpr std::string_view backward_add = "attn.bwd.add";
inline constexpr std::string_view backward_zero = "attn.bwd.zero";
inline constexpr std::string_view backward_delta = "attn.bwd.delta";
inline constexpr std::string_view backward_sink = "attn.bwd.sink";
inline constexpr std::string_view backward_store = "attn.bwd.store";
inline constexpr std::string_view pack = "attn.ulysses.pack";
inline constexpr std::string_view unpack = "attn.ulysses.unpack";
inline constexpr std::string_view shift_q = "attn.shift.q";  // Q, or the bundle {Q, dO, LSE, Delta}
inline constexpr std::string_view shift_kv = "attn.shift.kv";
inline constexpr std::string_view shift_o = "attn.shift.o";      // running (O, LSE)
inline constexpr std::string_view shift_dq = "attn.shift.dq";    // running dQ
inline constexpr std::string_view shift_dkv = "attn.shift.dkv";  // running dK, dV
inline constexpr std::string_view gather_kv = "attn.gather.kv";
inline constexpr std::string_view scatter_dkv = "attn.scatter.dkv";
inline constexpr std::string_view exchange = "attn.ulysses.exchange";
inline constexpr std::string_view reduce_sink = "attn.reduce.sink";

}  // namespace tessera::attention::label
