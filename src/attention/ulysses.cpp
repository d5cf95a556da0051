// SPDX-License-Identifier: Apache-2.0
#include "attention/ulysses.hpp"

#include <fmt/format.h>

namespace tessera::attention {

using plan::Access;

namespace {

const plan::Buffer& info(const Emit& e, int id) {
  return e.plan().buffers[static_cast<std::size_t>(id)];
}

/// Heads of the shard that belong to a slice of a peer.
Range heads_at(const Emit& e, const Exchanged& x, int inner, int slice) {
  const Heads h = slice_of(heads_of(e.c.problem, e.c.split, inner), e.c.split, slice);
  return x.query_heads ? h.query : h.kv;
}

/// Rows of shard `inner` inside the chunk.
Range rows_at(const Emit& e, const Exchanged& x, int inner) {
  const std::int64_t c = info(e, x.shard).shape[0];
  return {inner * c, (inner + 1) * c};
}

/// A buffer like the shard, for pieces that go to or come from each peer.
int staging(Emit& e, const Exchanged& x, const char* suffix) {
  const plan::Buffer like = info(e, x.shard);
  const plan::Buffer chunk = info(e, x.chunk);
  return e.tensor(e.of_slice((like.name + suffix).c_str()), plan::Role::scratch, chunk.dtype,
                  like.shape[0] * e.c.split.u, chunk.shape[1], like.shape[2]);
}

}  // namespace

void emit_enter(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key) {
  const int u = e.c.split.u;
  std::vector<int> packed;
  for (const Exchanged& x : tensors) {
    packed.push_back(staging(e, x, ".pack"));
    for (int peer = 0; peer < u; ++peer) {
      const plan::Use piece = e.b.part(x.shard, Access::read, {0, info(e, x.shard).shape[0]},
                                       heads_at(e, x, peer, e.slice));
      const int to = peer == e.inner ? x.chunk : packed.back();
      e.copy(label::pack, piece, e.b.rows(to, Access::write, rows_at(e, x, peer)));
    }
  }
  for (int d = 1; d < u; ++d) {
    const int to = (e.inner + d) % u, from = (e.inner + u - d) % u, group = e.b.new_group();
    std::vector<plan::Use> out, in;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      out.push_back(e.b.rows(packed[i], Access::read, rows_at(e, tensors[i], to)));
      in.push_back(e.b.rows(tensors[i].chunk, Access::write, rows_at(e, tensors[i], from)));
    }
    e.b.send(e.comm_queue, group, label::exchange, {}, axis, e.c.split.rank_of(e.outer, to),
             key + d, out);
    e.b.recv(e.comm_queue, group, label::exchange, {}, axis, e.c.split.rank_of(e.outer, from),
             key + d, in);
  }
}

Outbound emit_exit(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key) {
  const int u = e.c.split.u;
  Outbound exit{tensors, {}, e.slice};
  std::vector<int>& received = exit.received;
  for (const Exchanged& x : tensors) received.push_back(staging(e, x, ".back"));
  for (int d = 1; d < u; ++d) {
    const int to = (e.inner + d) % u, from = (e.inner + u - d) % u, group = e.b.new_group();
    std::vector<plan::Use> out, in;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      out.push_back(e.b.rows(tensors[i].chunk, Access::read, rows_at(e, tensors[i], to)));
      in.push_back(e.b.rows(received[i], Access::write, rows_at(e, tensors[i], from)));
    }
    e.b.send(e.comm_queue, group, label::exchange, {}, axis, e.c.split.rank_of(e.outer, to),
             key + d, out);
    e.b.recv(e.comm_queue, group, label::exchange, {}, axis, e.c.split.rank_of(e.outer, from),
             key + d, in);
  }
  return exit;
}

void emit_unpack(Emit& e, const Outbound& exit) {
  const int u = e.c.split.u;
  for (std::size_t i = 0; i < exit.tensors.size(); ++i) {
    const Exchanged& x = exit.tensors[i];
    const bool replicated = !x.query_heads && e.c.problem.kv_heads % u != 0;
    for (int d = 0; d < u; ++d) {
      const int from = (e.inner + u - d) % u;
      const plan::Use piece =
          e.b.rows(d == 0 ? x.chunk : exit.received[i], Access::read, rows_at(e, x, from));
      const plan::Use place =
          e.b.part(x.shard, replicated ? Access::update : Access::write,
                   {0, info(e, x.shard).shape[0]}, heads_at(e, x, from, exit.slice));
      if (replicated)
        e.add(label::unpack, {}, piece, place);
      else
        e.copy(label::unpack, piece, place);
    }
  }
}

}  // namespace tessera::attention
