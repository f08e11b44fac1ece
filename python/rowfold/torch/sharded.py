# SPDX-License-Identifier: MIT
"""A fused forward whose linear layer is split by columns over the processes of a group.

Each process holds some rows of W, computes partial states of its columns, and merges those of all. The messages are
``torch.distributed``'s own. What processes say of themselves goes by gloo, from each to each, so that the one that is
missing is known by name, and on the host, so that a GPU goes on meanwhile. States go the way of their device: by NCCL
in the order of the current stream, or by gloo.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import torch.distributed as dist

from .. import errors
from ..errors import CommunicationError, Error, FuseError, InvalidArgumentError, first_line
from ..model import Model
from ..shards import States, merge_states
from .heads import head
from .program import Program, Runner, signature

_TAG, _CARD_TAG = 0x6F57, 0x6F58  # so that messages of the caller's own, in the same group, are not taken for these
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


def backends_of(group: Any) -> dict[str, str]:
    """The backend of a group for each kind of device."""
    config = str(dist.get_backend_config(group)) if hasattr(dist, "get_backend_config") else dist.get_backend(group)
    if ":" not in config:
        return {"cuda": config} if config == "nccl" else {"cpu": config, "cuda": config}
    return dict(item.split(":", 1) for item in config.split(","))


_beside: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # groups with gloo of the same processes


def _with_gloo(group: Any, timeout: float | None) -> Any:
    """The group itself if it has gloo, else one beside it, which all of its processes make at the same time.

    Raises CommunicationError where some of them do not in time, or gloo cannot.
    """
    if backends_of(group).get("cpu") == "gloo":
        return group
    if group not in _beside:
        limit: dict[str, Any] = {} if timeout is None else {"timeout": timedelta(seconds=timeout)}
        ranks = dist.get_process_group_ranks(group)
        try:
            _beside[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True, **limit)
        except RuntimeError as error:
            within = "the group's time limit" if timeout is None else f"{timeout:g} s (tp_timeout)"
            raise CommunicationError(
                f"the processes with global ranks {', '.join(map(str, ranks))} could not make a group of gloo beside "
                f"tp_group, which has none, within {within}: {first_line(error)}; expected the same call of all of "
                "them"
            ) from None
    return _beside[group]


def _all_gather() -> Any:
    """PyTorch's function, which has had this name since 2.13."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _Awaited:
    """Cards of a group's other processes, which are awaited before the call that wants them.

    gloo sends at once what the other side awaits, and asks before anything else: half of the time of a small message.
    All exchanges of a group share these, for messages of one group come in one order.
    """

    def __init__(self, group: Any) -> None:
        self.others = [rank for rank in range(dist.get_world_size(group)) if rank != dist.get_rank(group)]
        self.bytes = np.zeros((len(self.others) + 1, _CARD), np.uint8)
        self.cards = list(torch.from_numpy(self.bytes))
        self.works: list[Any] = []

    def post(self, group: Any) -> None:
        """Awaits a card from each other process; raises RuntimeError where one is gone."""
        for rank in self.others[len(self.works) :]:
            source = dist.get_global_rank(group, rank)
            self.works.append(dist.irecv(self.cards[rank], source, group=group, tag=_CARD_TAG))


_awaited: WeakKeyDictionary[Any, _Awaited] = WeakKeyDictionary()


class Exchange:
    """Messages between all processes of a group, each within a time limit."""

    def __init__(self, group: Any, timeout: float | None) -> None:
        self.timeout = timeout
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._of_devices = group if backends_of(group).get("cuda") == "nccl" else None
        self.group = _with_gloo(group, timeout)
        self._broken = ""
        self._last: tuple[bytes, list[dict[str, Any]]] = b"", []
        self._said: tuple[dict[str, Any], bytes] = {}, b""
        self.counts: list[int] = []  # columns of each process, in the last call of a function of tensors

    @property
    def broken(self) -> bool:
        """Whether an exchange has failed: what is under way cannot be told from what comes."""
        return bool(self._broken)

    def gather_states(self, mine: torch.Tensor) -> torch.Tensor:
        """``gather`` of what may be on a GPU: there it is only begun."""
        if not mine.is_cuda:
            return self.gather(mine)
        if self._of_devices is None:
            return self.gather(mine.cpu()).to(mine.device)
        everyone = mine.new_empty((self.size, *mine.shape))
        if mine.numel():
            _all_gather()(everyone, mine, group=self._of_devices)
        return everyone

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """What each process sent, (processes, n), of ``mine`` (n) from each; raises CommunicationError."""
        if self._broken:
            raise CommunicationError(f"an exchange before has failed: {self._broken}")
        everyone = mine.new_empty((self.size, *mine.shape))
        everyone[self.rank] = mine
        if not mine.numel():
            return everyone
        others = [rank for rank in range(self.size) if rank != self.rank]
        waiting = [(rank, self._post(rank, dist.irecv, everyone[rank], _TAG)) for rank in others]
        waiting += [(rank, self._post(rank, dist.isend, mine, _TAG)) for rank in others]
        self._wait(waiting)
        return everyone

    def _gather_cards(self, mine: bytearray) -> bytes:
        """What each process sent, one card after the other."""
        if self._broken:
            raise CommunicationError(f"an exchange before has failed: {self._broken}")
        if self.group not in _awaited:
            _awaited[self.group] = _Awaited(self.group)
        awaited, card = _awaited[self.group], torch.frombuffer(mine, dtype=torch.uint8)
        awaited.bytes[self.rank] = np.frombuffer(mine, np.uint8)
        sent = [(rank, self._post(rank, dist.isend, card, _CARD_TAG)) for rank in awaited.others]
        try:
            awaited.post(self.group)
        except RuntimeError as error:
            raise self._lost(awaited.others[len(awaited.works)], error) from None
        self._wait([*zip(awaited.others, awaited.works), *sent])
        everyone = awaited.bytes.tobytes()
        awaited.works = []
        with contextlib.suppress(RuntimeError):  # one that has left since is missed by the next call, if there is one
            awaited.post(self.group)
        return everyone

    def _post(self, rank: int, call: Any, tensor: torch.Tensor, tag: int) -> Any:
        try:
            return call(tensor, dist.get_global_rank(self.group, rank), group=self.group, tag=tag)
        except RuntimeError as error:
            raise self._lost(rank, error) from None

    def _wait(self, waiting: Sequence[tuple[int, Any]]) -> None:
        end = None if self.timeout is None else time.monotonic() + self.timeout
        for rank, work in waiting:
            try:
                if end is None:
                    work.wait()
                else:
                    work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
            except RuntimeError as error:
                raise self._lost(rank, error) from None

    def _lost(self, rank: int, error: RuntimeError) -> CommunicationError:
        place = dist.get_global_rank(self.group, rank)
        self._broken = f"rank {rank} (global rank {place}) did not answer: {first_line(error)}"
        return CommunicationError(self._broken)

    def agree(self, error: Exception | None, facts: dict[str, Any]) -> list[dict[str, Any]]:
        """What each process says of itself; raises on all what any of them has failed with, and names it."""
        mine = facts
        if error is not None:
            mine = {"error": type(error).__name__, "says": str(error)[:600]}
        if not self._said[1] or mine != self._said[0]:
            data = json.dumps(mine).encode().ljust(_CARD)
            if len(data) > _CARD:  # of characters that JSON spells out
                data = json.dumps({"error": type(error).__name__, "says": "(see that process)"}).encode().ljust(_CARD)
            self._said = dict(mine), data
        everyone = self._gather_cards(bytearray(self._said[1]))
        if everyone == self._last[0]:  # as from call to call
            return self._last[1]
        cards: list[dict[str, Any]] = [json.loads(everyone[i : i + _CARD]) for i in range(0, len(everyone), _CARD)]
        for rank, card in enumerate(cards):
            if "error" in card:
                kind: Any = getattr(errors, card["error"], None)
                if not (isinstance(kind, type) and issubclass(kind, Error)):
                    kind, card["says"] = CommunicationError, f"{card['error']}: {card['says']}"
                raise kind(f"rank {rank} failed: {card['says']}") from (error if rank == self.rank else None)
        self._last = everyone, cards
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

    def run(
        self,
        program: Program,
        leaves: Any,
        x: torch.Tensor,
        columns: Sequence[torch.Tensor],
        refused: Exception | None,
    ) -> Any:
        """The fused forward of x and the columns that its rows name, which are the same on all processes.

        ``leaves()`` are this one's tensors. Returns the output, or the list of those of a program that has several.
        """
        part, runner, error = None, None, refused
        given: dict[str, Any] = {}
        if error is None:
            try:
                runner = self._loaded(program, leaves())
                runner.check(x)
                given = runner.given(x, columns)
                part = runner.model.states(x, **given)
            except Exception as failure:  # whatever it is, the others must not wait
                error = failure
        parts = parts_of(self.exchange, error, x.shape, part, self.total)
        assert runner is not None
        found = merge_states(runner.model, parts, **given)
        return runner.outputs(found, columns) if program.outputs else runner.finish(found)

    def _loaded(self, program: Program, leaves: Sequence[torch.Tensor]) -> Runner:
        if self._runner is None or self._runner.signature != signature(leaves):
            self._runner = None
            runner = Runner(program, leaves, self.columns)
            count = runner.loaded.weight.shape[0]
            if count != self.count:
                raise FuseError(f"the weight has {count} rows, and had {self.count} when it was fused; fuse it anew")
            self._runner = runner
        return self._runner


def parts_of(
    exchange: Exchange, error: Exception | None, shape: torch.Size, part: States | None, total: int
) -> list[States]:
    """The states of all processes, from those of this one, or from what kept it from having any.

    ``shape`` is that of x, the same on all.
    """
    cards = exchange.agree(error, _facts(shape, part))
    assert part is not None
    return _exchanged(exchange, cards, part, total)


def _facts(shape: torch.Size, part: States | None) -> dict[str, Any]:
    """What the others must know of a process's states."""
    if part is None:
        return {}
    facts = {"shape": list(shape), "first": part.first_column, "count": part.num_columns, "chain": part.chain}
    return facts | {"states": list(part.data.shape[-2:]), "device": part.data.device.type}


def _exchanged(exchange: Exchange, cards: list[dict[str, Any]], part: States, total: int) -> list[States]:
    """The states of all processes, which have said what theirs are."""
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
        if card["device"] != cards[0]["device"]:
            raise InvalidArgumentError(
                f"rank {rank} has x on {card['device']}, and rank 0 on {cards[0]['device']}; expected the same"
            )
    lead = cards[0]["shape"][:-1]
    sizes = [math.prod(lead) * card["states"][0] * card["states"][1] for card in cards]
    sent = part.data.reshape(-1)
    if sizes[exchange.rank] < max(sizes):
        sent = torch.cat([sent, sent.new_zeros(max(sizes) - sizes[exchange.rank])])
    everyone = exchange.gather_states(sent)
    return [
        States(
            everyone[rank, : sizes[rank]].view(*lead, *card["states"]),
            card["first"],
            card["count"],
            total,
            card["chain"],
        )
        for rank, card in enumerate(cards)
    ]


class Layer(NamedTuple):
    """A call of a function of tensors, of which the weight, and what goes with its rows, is this process's part."""

    chain: str
    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    rows: Mapping[str, Any]
    vectors: Mapping[str, torch.Tensor]  # of all columns


def results_of(exchange: Exchange, make: Callable[[], Layer]) -> tuple[Any, int]:
    """What the chain comes to over the columns of all processes, without the one column, and how many these are.

    Which columns each has is taken to be what it was, so that one message says all; where it is not, that is found out
    by all, who then begin anew.
    """
    error, layer, loaded = None, None, None
    facts: dict[str, Any] = {}
    try:
        layer = make()
        facts = {"count": layer.weight.shape[0], "asks": zlib.crc32(layer.chain.encode())}
        if exchange.counts and exchange.counts[exchange.rank] == facts["count"]:
            loaded = _states_of(layer, exchange.rank, exchange.counts)
            facts |= {**_facts(layer.hidden.shape, loaded[1]), "counts": _checksum(exchange.counts)}
    except Exception as failure:  # whatever it is, the others must not wait
        error = failure
    cards = exchange.agree(error, facts)
    assert layer is not None
    for rank, card in enumerate(cards):
        if card["asks"] != cards[0]["asks"]:
            raise InvalidArgumentError(
                f"rank {rank} asks for something else than rank 0; expected the same arguments on all processes"
            )
    counts = [card["count"] for card in cards]
    if any(card.get("counts") != _checksum(counts) for card in cards):
        exchange.counts = counts
        try:
            loaded = _states_of(layer, exchange.rank, counts)
        except Exception as failure:
            error = failure
        cards = exchange.agree(error, {} if error is not None else _facts(layer.hidden.shape, loaded and loaded[1]))
    assert loaded is not None
    model, part = loaded
    parts = _exchanged(exchange, cards, part, sum(counts))
    return merge_states(model, parts, keepdims=False, **layer.rows), sum(counts)


def _checksum(counts: Sequence[int]) -> int:
    return zlib.crc32(repr(list(counts)).encode())


def _states_of(layer: Layer, rank: int, counts: Sequence[int]) -> tuple[Model, States]:
    """The loaded model of a process's columns, and its states."""
    first, count, total = sum(counts[:rank]), counts[rank], sum(counts)
    for name, vector in layer.vectors.items():
        if len(vector) != total:
            raise InvalidArgumentError(f"{name} has {len(vector)} values; expected {total}, those of all processes")
    own = {name: vector[first : first + count] for name, vector in layer.vectors.items()}
    model = head(layer.chain, layer.weight, layer.bias, own, {"first_column": first, "total_columns": total})
    return model, model.states(layer.hidden, **layer.rows)


def exchange_of(tensors: Sequence[tuple[str, Any]], group: Any, timeout: float | None) -> Exchange | None:
    """How this process reaches those that have the other columns; None where it has all."""
    found = group_of(tensors, group)
    if found is None:
        return None
    kept = _exchanges.get(found)
    if kept is None or kept.broken:
        kept = _exchanges[found] = Exchange(found, timeout)
    kept.timeout = timeout
    return kept


_exchanges: WeakKeyDictionary[Any, Exchange] = WeakKeyDictionary()
