# SPDX-License-Identifier: MIT
"""A fused forward whose linear layer is split by columns over the processes of a group.

Each process holds some rows of W, computes partial states of its columns, and merges those of all. The messages are
``torch.distributed``'s own: each process sends to each other one, so that the one that is missing is known by name.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .. import errors
from ..errors import CommunicationError, Error, FuseError, InvalidArgumentError
from ..shards import States, merge_states
from .program import Program, Runner, signature

_TAG = 0x6F57  # so that messages of the caller's own, in the same group, are not taken for these
_CARD = 1024  # bytes of what a process says of itself before anyone waits for its states

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor. Their module takes long to import, and is there where one is."""
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def group_of(tensors: Sequence[tuple[str, Any]], given: Any) -> Any:
    """The group over which DTensors among these are split by rows; ``given`` where there are none.

    Raises FuseError for any other placement, and where they are not of one group.
    """
    found, whose = given, "tp_group"
    for name, tensor in tensors:
        if not _is_dtensor(tensor):
            continue
        over = [i for i, placement in enumerate(tensor.placements) if not placement.is_replicate()]
        if len(over) != 1 or not tensor.placements[over[0]].is_shard(0):
            raise FuseError(
                f"{name} is a DTensor with placements {tensor.placements}; expected Shard(0) over one dimension of the "
                "mesh, rows of W for each process"
            )
        group = tensor.device_mesh.get_group(over[0])
        if found is not None and dist.get_process_group_ranks(found) != dist.get_process_group_ranks(group):
            raise FuseError(
                f"{name} is split over the processes {dist.get_process_group_ranks(group)}, and {whose} has "
                f"{dist.get_process_group_ranks(found)}; expected the same"
            )
        found, whose = group, name
    return found


def local(tensor: Any) -> Any:
    """The rows of a DTensor that are here; any other tensor as it is."""
    if not _is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


class Exchange:
    """Messages between all processes of a group, each within a time limit."""

    def __init__(self, group: Any, timeout: float | None) -> None:
        if dist.get_backend(group) == "nccl":
            raise InvalidArgumentError(
                "tp_group has the backend nccl, and states are in host memory so far; expected a group with gloo"
            )
        self.group, self.timeout = group, timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._broken = ""

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """What each process sent, (processes, n), of ``mine`` (n) from each; raises CommunicationError."""
        if self._broken:
            raise CommunicationError(f"an exchange before has failed: {self._broken}")
        everyone = mine.new_empty((self.size, *mine.shape))
        everyone[self.rank] = mine
        if not mine.numel():
            return everyone
        others = [rank for rank in range(self.size) if rank != self.rank]
        end = None if self.timeout is None else time.monotonic() + self.timeout
        waiting: list[tuple[int, Any]] = []
        for rank in others:
            waiting.append((rank, self._post(rank, dist.irecv, everyone[rank])))
        for rank in others:
            waiting.append((rank, self._post(rank, dist.isend, mine)))
        for rank, work in waiting:
            try:
                if end is None:
                    work.wait()
                else:
                    work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
            except RuntimeError as error:
                raise self._lost(rank, error) from None
        return everyone

    def _post(self, rank: int, call: Any, tensor: torch.Tensor) -> Any:
        try:
            return call(tensor, dist.get_global_rank(self.group, rank), group=self.group, tag=_TAG)
        except RuntimeError as error:
            raise self._lost(rank, error) from None

    def _lost(self, rank: int, error: RuntimeError) -> CommunicationError:
        reason = str(error).strip().splitlines()[0]
        self._broken = f"rank {rank} (global rank {dist.get_global_rank(self.group, rank)}) did not answer: {reason}"
        return CommunicationError(self._broken)

    def agree(self, error: Exception | None, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """What each process says of itself; raises on all what any of them has failed with, and names it."""
        mine = dict(facts)
        if error is not None:
            mine = {"error": type(error).__name__, "says": str(error)[:600]}
        data = json.dumps(mine).encode().ljust(_CARD)
        if len(data) > _CARD:  # of characters that JSON spells out
            data = json.dumps({"error": type(error).__name__, "says": "(see that process)"}).encode().ljust(_CARD)
        everyone = self.gather(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        cards: list[dict[str, Any]] = [json.loads(bytes(card.tolist())) for card in everyone]
        for rank, card in enumerate(cards):
            if "error" in card:
                kind: Any = getattr(errors, card["error"], None)
                if not (isinstance(kind, type) and issubclass(kind, Error)):
                    kind, card["says"] = CommunicationError, f"{card['error']}: {card['says']}"
                raise kind(f"rank {rank} failed: {card['says']}") from (error if rank == self.rank else None)
        return cards


class Shards:
    """Which columns this process has, and how it computes results with the others."""

    def __init__(self, exchange: Exchange, count: int, cards: list[dict[str, Any]]) -> None:
        self.exchange, self.count = exchange, count
        counts = [card["count"] for card in cards]
        self.first, self.total = sum(counts[: exchange.rank]), sum(counts)
        self._runner: Runner | None = None

    @classmethod
    def open(cls, exchange: Exchange, error: Exception | None, count: int) -> Shards:
        """Called by all processes, by those that failed, too."""
        return cls(exchange, count, exchange.agree(error, {"count": count}))

    @property
    def columns(self) -> dict[str, int]:
        """The keywords of Model."""
        return {"first_column": self.first, "total_columns": self.total}

    def forget(self) -> None:
        """Loads the weights anew at the next call."""
        self._runner = None

    def run(self, program: Program, leaves: Any, x: torch.Tensor, refused: Exception | None) -> torch.Tensor:
        """The fused forward of x, which is the same on all processes. ``leaves()`` are this one's tensors."""
        part, runner, error = None, None, refused
        if error is None:
            try:
                runner = self._loaded(program, leaves())
                runner.check(x)
                part = runner.model.states(x)
            except Exception as failure:  # whatever it is, the others must not wait
                error = failure
        facts = {}
        if part is not None:
            facts = {"shape": list(x.shape), "first": part.first_column, "count": part.num_columns}
            facts |= {"chain": part.chain, "states": list(part.data.shape[-2:])}
        cards = self.exchange.agree(error, facts)
        assert part is not None and runner is not None
        return runner.finish(merge_states(runner.model, self._parts(cards, x, part)))

    def _parts(self, cards: list[dict[str, Any]], x: torch.Tensor, part: States) -> list[States]:
        mine = cards[self.exchange.rank]
        for rank, card in enumerate(cards):
            if card["shape"] != cards[0]["shape"]:
                raise InvalidArgumentError(
                    f"rank {rank} has x of shape {tuple(card['shape'])}, and rank 0 {tuple(cards[0]['shape'])}; "
                    "expected the same x on all processes of tp_group"
                )
            if card["chain"] != cards[0]["chain"]:
                raise InvalidArgumentError(
                    f"rank {rank} computes another chain than rank 0, or in another type; expected the same module"
                )
        rows = x.shape[:-1].numel()
        sizes = [rows * card["states"][0] * card["states"][1] for card in cards]
        sent = part.data.new_zeros(max(sizes))
        sent[: sizes[self.exchange.rank]] = part.data.reshape(-1)
        assert mine["states"] == list(part.data.shape[-2:])
        everyone = self.exchange.gather(sent)
        return [
            States(
                everyone[rank, : sizes[rank]].view(*x.shape[:-1], *card["states"]),
                card["first"],
                card["count"],
                self.total,
                card["chain"],
            )
            for rank, card in enumerate(cards)
        ]

    def _loaded(self, program: Program, leaves: Sequence[torch.Tensor]) -> Runner:
        if self._runner is None or self._runner.signature != signature(leaves):
            self._runner = None
            runner = Runner(program, leaves, self.columns)
            count = runner.loaded.weight.shape[0]
            if count != self.count:
                raise FuseError(f"the weight has {count} rows, and had {self.count} when it was fused; fuse it anew")
            self._runner = runner
        return self._runner
