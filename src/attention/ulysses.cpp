// SPDX-License-Identifier: Apache-2.0
#include "attention/ulysses.hpp"

#include <fmt/format.h>

namespace tessera::attention {

using plan::Access;

namespace {

/// Heads of the shard that belong to a slice of a peer.
Range heads_at(const Emit& e, const Exchanged& x, int inner, int slice) {
  const Heads h = slice_of(heads_of(e.c.problem, e.c.split, inner), e.c.split, slice);
  return x.query_heads ? h.query : h.kv;
}

/// What a peer's heads of a slice have in the shard.
plan::Use place(const Emit& e, const Exchanged& x, Access access, int inner, int slice) {
  return e.b.part(x.shard, access, e.all_rows({x.shard}), heads_at(e, x, inner, slice));
}

bool replicated(const Emit& e, const Exchanged& x) {
  return !x.query_heads && e.c.problem.kv_heads % e.c.split.u != 0;
}

/// Puts the pieces of one peer, one of each tensor, into their places in the shards.
void emit_pieces(Emit& e, const std::vector<Exchanged>& tensors, const std::vector<int>& pieces,
                 int inner, int slice) {
  std::vector<plan::Use> copies, sums;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Exchanged& x = tensors[i];
    const bool sum = replicated(e, x);
    std::vector<plan::Use>& pairs = sum ? sums : copies;
    pairs.push_back(e.b.rows(pieces[i], Access::read, shard_rows(e, x, inner)));
    pairs.push_back(place(e, x, sum ? Access::update : Access::write, inner, slice));
  }
  e.copy(label::unpack, std::move(copies));
  e.add(label::unpack, {}, std::move(sums));
}

/// A buffer like the shard, for pieces that go to or come from each peer.
int staging(Emit& e, const Exchanged& x, const char* suffix) {
  const plan::Buffer like = e.info(x.shard);
  const plan::Buffer chunk = e.info(x.chunk);
  return e.tensor(e.of_slice((like.name + suffix).c_str()), plan::Role::scratch, chunk.dtype,
                  like.shape[0] * e.c.split.u, chunk.shape[1], like.shape[2]);
}

}  // namespace

Range shard_rows(const Emit& e, const Exchanged& x, int inner) {
  const std::int64_t c = e.info(x.shard).shape[0];
  return {inner * c, (inner + 1) * c};
}

plan::Use own_place(const Emit& e, const Exchanged& x) {
  return place(e, x, Access::write, e.inner, e.slice);
}

void emit_enter(Emit& e, const std::vector<Exchanged>& tensors, int axis, int key) {
  const int u = e.c.split.u;
  std::vector<int> packed;
  std::vector<plan::Use> pairs;
  for (const Exchanged& x : tensors) {
    packed.push_back(staging(e, x, ".pack"));
    for (int peer = 0; peer < u; ++peer) {
      pairs.push_back(place(e, x, Access::read, peer, e.slice));
      const int to = peer == e.inner ? x.chunk : packed.back();
      pairs.push_back(e.b.rows(to, Access::write, shard_rows(e, x, peer)));
    }
  }
  e.copy(label::pack, std::move(pairs));
  for (int d = 1; d < u; ++d) {
    const int to = (e.inner + d) % u, from = (e.inner + u - d) % u, group = e.b.new_group();
    std::vector<plan::Use> out, in;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      out.push_back(e.b.rows(packed[i], Access::read, shard_rows(e, tensors[i], to)));
      in.push_back(e.b.rows(tensors[i].chunk, Access::write, shard_rows(e, tensors[i], from)));
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
      out.push_back(e.b.rows(tensors[i].chunk, Access::read, shard_rows(e, tensors[i], to)));
      in.push_back(e.b.rows(received[i], Access::write, shard_rows(e, tensors[i], from)));
    }
    e.b.send(e.comm_queue, group, label::exchange, {}, axis, e.c.split.rank_of(e.outer, to),
             key + d, out);
    e.b.recv(e.comm_queue, group, label::exchange, {}, axis, e.c.split.rank_of(e.outer, from),
             key + d, in);
  }
  return exit;
}

void emit_own(Emit& e, const std::vector<Exchanged>& tensors) {
  std::vector<int> chunks;
  for (const Exchanged& x : tensors) chunks.push_back(x.chunk);
  emit_pieces(e, tensors, chunks, e.inner, e.slice);
}

void emit_unpack(Emit& e, const Outbound& exit) {
  const int u = e.c.split.u;
  if (exit.tensors.empty()) return;
  for (int d = 1; d < u; ++d)
    emit_pieces(e, exit.tensors, exit.received, (e.inner + u - d) % u, exit.slice);
}

}  // namespace tessera::attention
