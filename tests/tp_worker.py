# SPDX-License-Identifier: MIT
"""One of several processes that hold a layer's columns: tests/test_torch_sharded.py starts them.

    python tp_worker.py SCENARIO RANK SIZE FILE [BACKEND]

FILE is where they find each other; with nccl each has a GPU. Prints what happened as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import rowfold
import rowfold.torch
import torch
import torch.distributed as dist
from rowfold.torch import linear_cross_entropy, sharded, token_logprobs
from torch import nn
from torch_devices import captured

K, N = 24, 4700
scenario, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
backend = sys.argv[5] if len(sys.argv) > 5 else "gloo"
device = f"cuda:{rank}" if "nccl" in backend else "cpu"
torch.set_num_threads(1)
if device != "cpu":
    torch.cuda.set_device(rank)
dist.init_process_group(
    backend, init_method=f"file://{sys.argv[4]}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
)
generator = torch.Generator().manual_seed(3)
W, b = torch.randn(N, K, generator=generator).to(device), torch.randn(N, generator=generator).to(device)
x = torch.randn(2, 3, K, generator=generator).to(device)


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


class Several(Head):
    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.out(x)
        values, places = h.max(dim=-1)
        loss = torch.nn.functional.cross_entropy(h.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
        return {"energy": -h.logsumexp(-1), "best": places, "most": values, "loss": loss}


class Best(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(x).topk(3).values


class Weighted(Head):
    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.out(x), targets, weight=self.out.bias)


def shard() -> Head:
    return Head(*rowfold.shard_columns(N, rank, size))


def fused(timeout: float = 60) -> nn.Module:
    return rowfold.torch.fuse(shard(), tp_group=dist.group.WORLD, tp_timeout=timeout)


def whole() -> torch.Tensor:
    return rowfold.torch.fuse(Head(0, N))(x)


def close(got: torch.Tensor, right: torch.Tensor, most: float = 1e-5) -> bool:
    return bool(torch.allclose(got.double(), right.double(), rtol=most, atol=most))


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


def several() -> object:
    """A module with several results, and with columns that its rows name; and those that are refused."""
    group, own = dist.group.WORLD, rowfold.shard_columns(N, rank, size)
    targets = torch.arange(6, device=device).reshape(2, 3) * 900
    targets[0, 0] = -100
    module = rowfold.torch.fuse(Several(*own), tp_group=group)
    got, right = module(x, targets), rowfold.torch.fuse(Several(0, N))(x, targets)
    same = [got.keys() == right.keys(), *(close(got[name], right[name]) for name in right)]
    again = module(x, targets.flip(0))
    same.append(close(again["loss"], rowfold.torch.fuse(Several(0, N))(x, targets.flip(0))["loss"]))
    answers = [
        refused(lambda: module(x, targets[:1] if rank == size - 1 else targets)),
        *([refused(lambda: module(x, targets + N if rank == 0 else targets))] if device == "cpu" else []),
        refused(lambda: rowfold.torch.fuse(Best(*own), tp_group=group)(x)),
        refused(lambda: rowfold.torch.fuse(Weighted(*own), tp_group=group)),
    ]
    return [all(same), answers, close(module(x, targets)["energy"], right["energy"])]


def dtensors() -> object:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh(device.partition(":")[0], (size,))
    module = Head(0, N)
    module.out.weight = nn.Parameter(distribute_tensor(W, mesh, [Shard(0)]), requires_grad=False)
    module.out.bias = nn.Parameter(distribute_tensor(b, mesh, [Shard(0)]), requires_grad=False)
    near = bool(torch.allclose(rowfold.torch.fuse(module)(x), whole(), rtol=1e-6))
    module.out.weight = nn.Parameter(distribute_tensor(W, mesh, [Shard(1)]), requires_grad=False)
    other = refused(lambda: rowfold.torch.fuse(module))
    module.out.weight = nn.Parameter(distribute_tensor(W, mesh, [Replicate()]), requires_grad=False)
    assert isinstance(module.out.weight, DTensor)
    return [near, other, refused(lambda: rowfold.torch.fuse(module))]


def graph_on_gpus() -> object:
    """Captured: the messages before the states are exchanged then, and the states at each replay."""
    first, count = rowfold.shard_columns(N, rank, size)
    own, rows = W[first : first + count].bfloat16(), x.bfloat16()
    targets, group, answers = torch.arange(6, device=device).reshape(2, 3) * 900, dist.group.WORLD, []
    module = rowfold.torch.fuse(shard().bfloat16(), tp_group=group)

    def call() -> list[torch.Tensor]:
        return [*token_logprobs(rows, own, targets, entropy=True, tp_group=group), module(rows)]

    graph, got = captured(call)
    for turn in range(3):
        rows.copy_(torch.roll(x, turn, -1))
        graph.replay()
        torch.cuda.synchronize()
        answers.append(all(torch.equal(a, b) for a, b in zip(got, call())))
    return answers


def subgroup() -> object:
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[rank % 2]
    first, count = rowfold.shard_columns(N, rank // 2, 2)
    y = rowfold.torch.fuse(Head(first, count), tp_group=mine)(x + rank % 2)
    return bool(torch.equal(y, rowfold.torch.fuse(Head(0, N))(x + rank % 2)))


def failing() -> object:
    torch.compile(lambda x: x, backend="eager")(x)  # which takes long to import
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
        module.out.weight = nn.Parameter(torch.zeros(5, K, device=device), requires_grad=False)
        module.out.bias = nn.Parameter(torch.zeros(5, device=device), requires_grad=False)
    answers.append(refused(lambda: module(x)))
    other = Logits(*rowfold.shard_columns(N, rank, size)) if rank == last else shard()
    answers.append(refused(lambda: rowfold.torch.fuse(other, tp_group=dist.group.WORLD)))
    again = fused()
    answers.append(refused(lambda: torch.compile(again, backend="eager")(x)))
    return [answers, close(again(x), whole())]


def functions() -> object:
    """token_logprobs and linear_cross_entropy, with all of their arguments that columns may be split for."""
    first, count = rowfold.shard_columns(N, rank, size)
    own, bias = W[first : first + count], b[first : first + count]
    hidden, targets = x, torch.arange(6).reshape(2, 3).to(device) * 900
    targets[0, 0] = -100
    classes = torch.rand(N, generator=generator).to(device)
    group, answers = dist.group.WORLD, []
    for entropy in (False, True):
        ways = {"temperature": 0.7, "softcap": 5.0, "entropy": entropy}
        whole = token_logprobs(hidden, W, targets, b, **ways)
        got = token_logprobs(hidden, own, targets, bias, **ways, tp_group=group)
        pairs = zip(got, whole) if entropy else [(got, whole)]
        answers.append(all(close(a, b) and a.device == hidden.device for a, b in pairs))
    for ways in ({}, {"label_smoothing": 0.1}, {"label_smoothing": 0.1, "weight": classes}, {"weight": classes}):
        flat = hidden.reshape(-1, K), targets.reshape(-1)
        whole = linear_cross_entropy(flat[0], W, flat[1], linear_bias=b, **ways)
        got = linear_cross_entropy(flat[0], own, flat[1], linear_bias=bias, **ways, tp_group=group)
        answers.append(close(got, whole))
    last = rank == size - 1
    answers.append(refused(lambda: token_logprobs(hidden, own, targets, bias, topk=2 * last, tp_group=group)))
    answers.append(refused(lambda: token_logprobs(hidden[..., : K - last], own, targets, bias, tp_group=group)))
    answers.append(refused(lambda: token_logprobs(hidden, own, targets, None, entropy=last, tp_group=group)))
    if device == "cpu":
        answers.append(refused(lambda: token_logprobs(hidden, own, targets + N * last, bias, tp_group=group)))
    wrong = classes[:count]
    answers.append(refused(lambda: linear_cross_entropy(flat[0], own, flat[1], weight=wrong, tp_group=group)))
    again = token_logprobs(hidden, own, targets, bias, tp_group=group)
    return [*answers, close(again, token_logprobs(hidden, W, targets, b))]


def mesh() -> object:
    """Two groups of columns, each with rows of its own: nothing has to be done for the batch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    columns, batch = both["tp"], both.get_local_rank("dp")
    own = x[batch]
    targets = torch.tensor([4, 4000, 4699])
    first, count = rowfold.shard_columns(N, columns.get_local_rank(), 2)
    got = token_logprobs(own, W[first : first + count], targets, b[first : first + count], tp_group=columns.get_group())
    fine = bool(torch.equal(got, token_logprobs(own, W, targets, b)))
    split = distribute_tensor(W, columns, [Shard(0)]), distribute_tensor(b, columns, [Shard(0)])
    fine &= close(token_logprobs(own, split[0], targets, split[1]), token_logprobs(own, W, targets, b))
    module = rowfold.torch.fuse(Head(first, count), tp_group=columns.get_group())
    fine &= bool(torch.equal(module(own), rowfold.torch.fuse(Head(0, N))(own)))
    loss = linear_cross_entropy(
        own,
        W[first : first + count],
        targets,
        linear_bias=b[first : first + count],
        reduction="sum",
        tp_group=columns.get_group(),
    )
    dist.all_reduce(loss, group=both["dp"].get_group())
    everything = linear_cross_entropy(x.reshape(-1, K), W, targets.repeat(2), linear_bias=b, reduction="sum")
    return [fine, close(loss, everything)]


def on_gpus() -> object:
    """By NCCL, and with fuse, of 16-bit weights where they are."""
    answers = []
    for dtype in (torch.float32, torch.bfloat16):
        first, count = rowfold.shard_columns(N, rank, size)
        own = Head(first, count).to(device, dtype)
        module = rowfold.torch.fuse(own, tp_group=dist.group.WORLD, tp_timeout=60)
        got = module(x.to(dtype))
        alone = rowfold.torch.fuse(Head(0, N).to(device, dtype))(x.to(dtype))
        everyone = [torch.empty_like(got) for _ in range(size)]
        dist.all_gather(everyone, got)
        answers.append(
            [close(got, alone, 3e-2 if dtype is torch.bfloat16 else 1e-5), all(torch.equal(got, y) for y in everyone)]
        )
    return answers


def bits_on_gpus() -> object:
    """Those of the states of all columns on one GPU, merged there."""
    answers, targets = [], torch.arange(6, device=device).reshape(2, 3) * 900
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        first, count = rowfold.shard_columns(N, rank, size)
        for chain, entropy in (("logprob(#target, -100)", False), ("logprob(#target, -100), entropy", True)):
            everything = W.to(dtype)
            got = token_logprobs(
                x.to(dtype), everything[first : first + count], targets, entropy=entropy, tp_group=dist.group.WORLD
            )
            model = rowfold.Model(f"linear | {chain}", K, N, dtype=str(dtype)[6:], device=device)
            model.load_weights(everything)
            parts = [model.states(x.to(dtype), target=targets)]
            right = rowfold.merge_states(model, parts, keepdims=False, target=targets)
            answers.append(all(torch.equal(a, b) for a, b in (zip(got, right) if entropy else [(got, right)])))
    return answers


def stay_until_all_have_seen_it() -> None:
    """All but the second process, which may wait for them here, too. One that were slower would see another gone, and
    name that.
    """
    others = [Path(f"{sys.argv[4]}.{other}") for other in range(size) if other != 1]
    Path(f"{sys.argv[4]}.{rank}").touch()
    end = time.monotonic() + 60
    while time.monotonic() < end and not all(other.exists() for other in others):
        time.sleep(0.05)


def killed() -> object:
    module = fused(20)
    module(x)
    if rank == 1:
        os._exit(7)
    refusals = [refused(lambda: module(x)), refused(lambda: module(x))]
    stay_until_all_have_seen_it()
    return refusals


def late() -> object:
    dist.barrier()  # a group without gloo has one made beside it, and must not be late for that already
    module = fused(5)
    module(x)
    if rank == 1:
        time.sleep(15)
        return None
    refusals = [refused(lambda: module(x))]
    stay_until_all_have_seen_it()
    return refusals


def absent() -> object:
    """The second process does not call fuse, which makes a group of gloo beside one that has none."""
    if backend == "gloo":
        sharded.backends_of = lambda group: {"cuda": "nccl"}
    refusals = None if rank == 1 else [refused(lambda: fused(2))]
    stay_until_all_have_seen_it()
    return refusals


np.seterr(all="raise")
print(json.dumps(globals()[scenario]()), flush=True)
if scenario not in ("killed", "late", "absent"):
    dist.destroy_process_group()
else:
    os._exit(0)
