# SPDX-License-Identifier: Apache-2.0
"""Attention over several GPUs as users of torch can have it, for torch_peers.py: ways to spread one
sequence over the ranks, each with autograd. Q, K, V and O of a rank are [1, local token, head,
128] in bf16; the default process group is the one that shares the sequence."""
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method
from torch.nn.attention.bias import causal_lower_right

HEADS, DIM = 32, 128


class Unsupported(Exception):
    """The method cannot do this case; the text says why."""


def zigzag(tokens, rank, n):
    """Token indices of a rank: chunk `rank` from the front and its mirror image from the end."""
    half = tokens // (2 * n)
    chunks = torch.arange(tokens).view(2 * n, half)
    return torch.cat([chunks[rank], chunks[2 * n - 1 - rank]])


def contiguous(tokens, rank, n):
    return torch.arange(tokens).view(n, -1)[rank]


def sdpa(q, k, v, causal):
    """[1, token, head, dim] in and out."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                          enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


class Method:
    """One way to spread attention over the ranks. Called with the rank's Q, K, V; gives its O."""

    name, backends = "", ("cudnn", "flash")

    def __init__(self, rank, n):
        self.rank, self.n, self.repeat_kv = rank, n, False

    def candidates(self, causal, kv_heads):
        """Lists of (backend, K and V repeated to all query heads); a later list is for the case
        that nothing in the earlier ones works."""
        return [[(b, False) for b in self.backends]]

    def rows(self, tokens, causal):
        return contiguous(tokens, self.rank, self.n)

    def context(self, tokens, causal):
        return contextlib.nullcontext()

    def require(self, tokens, kv_heads):
        if tokens % (2 * self.n):
            raise Unsupported(f"{tokens} tokens are no multiple of 2 x {self.n} ranks")


class ContextParallel(Method):
    """torch's own ring; load balancing (head and tail chunks) under the causal mask."""

    def __init__(self, rank, n, mesh, rotation):
        super().__init__(rank, n)
        self.name, self.mesh, self.rotation = f"context_parallel {rotation}", mesh, rotation

    def candidates(self, causal, kv_heads):
        native = [[(b, False) for b in ("cudnn", "flash", "efficient")]]
        return native + ([[(b, True) for b in ("cudnn", "flash")]] if kv_heads < HEADS else [])

    def rows(self, tokens, causal):
        return (zigzag if causal else contiguous)(tokens, self.rank, self.n)

    def context(self, tokens, causal):
        set_rotate_method(self.rotation)
        _cp_options.enable_load_balance = causal
        positions = torch.arange(tokens, device=device_of_rank())
        return context_parallel(self.mesh, buffers=[positions], buffer_seq_dims=[0])

    def __call__(self, q, k, v, causal):
        if self.repeat_kv:
            k, v = (x.repeat_interleave(HEADS // x.shape[2], 2) for x in (k, v))
        return sdpa(q, k, v, causal)


class Exchange(torch.autograd.Function):
    """all_to_all_single over dimension 0, whose extent is the number of ranks."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.forward(ctx, grad)


class Ulysses(Method):
    """Q, K and V packed into one all-to-all to whole sequences of some heads; O back by another."""

    name = "ulysses"

    def require(self, tokens, kv_heads):
        super().require(tokens, kv_heads)
        if kv_heads % self.n:
            raise Unsupported(f"{kv_heads} KV heads are no multiple of {self.n} ranks")

    def __call__(self, q, k, v, causal):
        n, local = self.n, q.shape[1]
        parts = [x.reshape(local, n, -1, DIM).transpose(0, 1) for x in (q, k, v)]
        sizes = [x.shape[2] for x in parts]
        received = Exchange.apply(torch.cat(parts, dim=2))  # [rank, its tokens, my heads, dim]
        q, k, v = received.view(1, n * local, -1, DIM).split(sizes, dim=2)
        o = Exchange.apply(sdpa(q, k, v, causal).reshape(n, local, -1, DIM))
        return o.transpose(0, 1).reshape(1, local, -1, DIM)


class Gather(torch.autograd.Function):
    """all_gather along a new dimension 0; reduce_scatter of the gradient."""

    @staticmethod
    def forward(ctx, x):
        n = dist.get_world_size()
        out = torch.empty((n * x.shape[0], *x.shape[1:]), dtype=x.dtype, device=x.device)
        dist.all_gather_into_tensor(out, x.contiguous())
        return out.view(n, *x.shape)

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty(grad.shape[1:], dtype=grad.dtype, device=grad.device)
        dist.reduce_scatter_tensor(out, grad.flatten(0, 1).contiguous())
        return out


class AllGather(Method):
    """K and V of all ranks gathered; under the causal mask each half of the zigzag queries against
    its prefix, which only torch's flash kernel can (causal, aligned to the last key)."""

    name = "all_gather"

    def candidates(self, causal, kv_heads):
        return [[("flash", False)]] if causal and self.n > 1 else super().candidates(causal, 0)

    def rows(self, tokens, causal):
        return (zigzag if causal else contiguous)(tokens, self.rank, self.n)

    def __call__(self, q, k, v, causal):
        kv = Gather.apply(torch.cat([k[0], v[0]], dim=1))  # [rank, token, K and V heads, dim]
        if not causal:
            kv = kv.view(1, -1, *kv.shape[2:])
            return sdpa(q, *kv.chunk(2, dim=2), False)
        halves = kv.unflatten(1, (2, -1))
        kv = torch.cat([halves[:, 0], halves[:, 1].flip(0)]).flatten(0, 1).unsqueeze(0)
        keys, values = kv.chunk(2, dim=2)
        half, out = q.shape[1] // 2, []
        for part, chunk in zip(q.chunk(2, dim=1), (self.rank, 2 * self.n - 1 - self.rank)):
            end = (chunk + 1) * half
            out.append(self.prefix(part, keys[:, :end], values[:, :end]))
        return torch.cat(out, dim=1)

    @staticmethod
    def prefix(q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=causal_lower_right(q.shape[2], k.shape[2]),
            enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


class Single(Method):
    """No transfers: each GPU by itself, on its share of tokens, or on all tokens with its share of
    the heads. The second has the flops of the distributed case: the limit of the others."""

    def __init__(self, rank, n, share):
        super().__init__(rank, n)
        self.name, self.share = f"single gpu, share of {share}", share

    def require(self, tokens, kv_heads):
        super().require(tokens, kv_heads)
        if self.share == "heads" and kv_heads % self.n:
            raise Unsupported(f"{kv_heads} KV heads are no multiple of {self.n} ranks")

    def __call__(self, q, k, v, causal):
        return sdpa(q, k, v, causal)


def device_of_rank():
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
