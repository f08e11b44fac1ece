# SPDX-License-Identifier: MIT
"""One of several processes that hold a layer's columns: tests/test_torch_sharded.py starts them.

    python tp_worker.py SCENARIO RANK SIZE FILE

FILE is where they find each other. Prints what happened as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

import numpy as np
import rowfold
import rowfold.torch
import torch
import torch.distributed as dist
from torch import nn

K, N = 24, 4700
scenario, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method=f"file://{sys.argv[4]}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
)
generator = torch.Generator().manual_seed(3)
W, b = torch.randn(N, K, generator=generator), torch.randn(N, generator=generator)
x = torch.randn(2, 3, K, generator=generator)


class Head(nn.Module):
    def __init__(self, first: int, count: int) -> None:
        super().__init__()
        self.out = nn.Linear(K, count)
        self.out.weight = nn.Parameter(W[first : first + count].clone(), requires_grad=False)
        self.out.bias = nn.Parameter(b[first : first + count].clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.logsumexp(self.out(x) * 0.5, dim=-1)) + 1


class Logits(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x)


def shard() -> Head:
    return Head(*rowfold.shard_columns(N, rank, size))


def fused(timeout: float = 60) -> nn.Module:
    return rowfold.torch.fuse(shard(), tp_group=dist.group.WORLD, tp_timeout=timeout)


def whole() -> torch.Tensor:
    return rowfold.torch.fuse(Head(0, N))(x)


def refused(call) -> list[str]:
    start = time.monotonic()
    try:
        call()
    except rowfold.Error as error:
        return [type(error).__name__, str(error), "soon" if time.monotonic() - start < 30 else "late"]
    return ["", "it went on", ""]


def numbers() -> object:
    module = fused()
    y = module(x)
    first = bool(torch.equal(y, whole()))
    with torch.no_grad():
        module.out.weight.mul_(2)
    W.mul_(2)
    changed = bool(torch.equal(module(x), whole()))
    cuts = [0, 1, 1 + N // 3, *[N] * size]
    uneven = Head(cuts[rank], (N if rank + 1 == size else cuts[rank + 1]) - cuts[rank])
    near = bool(torch.allclose(rowfold.torch.fuse(uneven, tp_group=dist.group.WORLD)(x), whole(), rtol=1e-6))
    none = module(x[:, :0])
    return [first, changed, near, list(none.shape), f"of {N}" in module.explain()]


def dtensors() -> object:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    module = Head(0, N)
    module.out.weight = nn.Parameter(distribute_tensor(W, mesh, [Shard(0)]), requires_grad=False)
    module.out.bias = nn.Parameter(distribute_tensor(b, mesh, [Shard(0)]), requires_grad=False)
    near = bool(torch.allclose(rowfold.torch.fuse(module)(x), whole(), rtol=1e-6))
    module.out.weight = nn.Parameter(distribute_tensor(W, mesh, [Shard(1)]), requires_grad=False)
    other = refused(lambda: rowfold.torch.fuse(module))
    module.out.weight = nn.Parameter(distribute_tensor(W, mesh, [Replicate()]), requires_grad=False)
    assert isinstance(module.out.weight, DTensor)
    return [near, other, refused(lambda: rowfold.torch.fuse(module))]


def subgroup() -> object:
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    first, count = rowfold.shard_columns(N, rank // 2, 2)
    y = rowfold.torch.fuse(Head(first, count), tp_group=mine)(x + rank % 2)
    return bool(torch.equal(y, rowfold.torch.fuse(Head(0, N))(x + rank % 2)))


def failing() -> object:
    module = fused()
    last = size - 1
    answers = [
        refused(lambda: module(x.double() if rank == last else x)),
        refused(lambda: module(x[:1] if rank == last else x)),
        refused(lambda: module(x[..., :-1] if rank == 0 else x)),
    ]
    if rank == 0:
        module.out.weight.requires_grad_(True)
    answers.append(refused(lambda: module(x)))
    module.out.weight.requires_grad_(False)
    if rank == last:
        module.out.weight = nn.Parameter(torch.zeros(5, K), requires_grad=False)
        module.out.bias = nn.Parameter(torch.zeros(5), requires_grad=False)
    answers.append(refused(lambda: module(x)))
    other = Logits(*rowfold.shard_columns(N, rank, size)) if rank == last else shard()
    answers.append(refused(lambda: rowfold.torch.fuse(other, tp_group=dist.group.WORLD)))
    again = fused()
    answers.append(refused(lambda: torch.compile(again, backend="eager")(x)))
    return [answers, bool(torch.equal(again(x), whole()))]


def killed() -> object:
    module = fused(20)
    module(x)
    if rank == 1:
        os._exit(7)
    return [refused(lambda: module(x)), refused(lambda: module(x))]


def late() -> object:
    module = fused(3)
    module(x)
    if rank == 1:
        time.sleep(12)
        return None
    return refused(lambda: module(x))


np.seterr(all="raise")
print(json.dumps(globals()[scenario]()), flush=True)
if scenario not in ("killed", "late"):
    dist.destroy_process_group()
else:
    os._exit(0)
