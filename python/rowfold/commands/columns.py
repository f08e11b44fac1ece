# SPDX-License-Identifier: MIT
"""Several processes that each hold some columns of the layer: all read all rows, and the first one writes.

They find each other as PyTorch's own do (MASTER_ADDR and MASTER_PORT, which torchrun sets), or by a file in the
output's folder, and exchange states by gloo.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import numpy as np

from .. import shards as layers
from ..errors import CommunicationError, InvalidArgumentError, first_line
from ..model import Model
from . import shards

# Which process of its machine this is: torchrun, Open MPI, MPICH and Intel MPI, Slurm.
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


class Columns:
    """The processes that have the other columns, as one of them sees them."""

    def __init__(self, torch: Any, sharded: Any, timeout: float) -> None:
        self._torch, self._sharded = torch, sharded
        self._exchange = sharded.Exchange(torch.distributed.group.WORLD, timeout)
        self.rank, self.size = self._exchange.rank, self._exchange.size
        self.told = False  # all know why this one does not go on

    def agree(self, error: Exception | None, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each process says of itself; raises on all what any of them has failed with."""
        try:
            cards: list[dict[str, Any]] = self._exchange.agree(error, dict(facts))
        except Exception:
            self.told = True
            raise
        return cards

    def least(self, what: str, number: int, same: Mapping[str, int]) -> int:
        """The least of a number that each process has; raises where they differ in what is to be the ``same``."""
        cards = self.agree(None, {what: number, **same})
        for rank, card in enumerate(cards):
            for name in same:
                if card[name] != cards[0][name]:
                    self.told = True
                    raise InvalidArgumentError(
                        f"--shard columns: rank {rank} has {card[name]} {name}, and rank 0 {cards[0][name]}; "
                        "expected the same files"
                    )
        return min(int(card[what]) for card in cards)

    def results(self, model: Model, x: Any, values: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """The results of some rows over the columns of all processes."""
        torch, part, error = self._torch, None, None
        try:
            part = model.states(x, **values)
            part = dataclasses.replace(part, data=torch.from_numpy(part.data))
        except Exception as failure:  # whatever it is, the others must not wait
            error = failure
        try:
            total = model.info.total_columns
            parts = self._sharded.parts_of(self._exchange, error, torch.Size(x.shape), part, total)
        except Exception:
            self.told = True
            raise
        parts = [dataclasses.replace(part, data=part.data.numpy()) for part in parts]
        made = layers.merge_states(model, parts, **values)
        return list(made) if isinstance(made, tuple) else [made]


@contextlib.contextmanager
def attend(arguments: argparse.Namespace) -> Iterator[Columns]:
    """What each process does all of its work in: one that fails tells the others why."""
    rank, size = shards.numbers()
    try:
        torch, distributed = importlib.import_module("torch"), importlib.import_module("torch.distributed")
        sharded = importlib.import_module("rowfold.torch.sharded")
    except ImportError as error:
        raise InvalidArgumentError(f"--shard columns: messages go by PyTorch, which is not there: {error}") from None
    limit = timedelta(seconds=arguments.shard_timeout)
    with _place(arguments, rank, size) as place:
        try:
            distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=size, timeout=limit)
        except RuntimeError as error:
            raise CommunicationError(
                f"the {size} processes have not met within {arguments.shard_timeout:g} seconds (--shard-timeout): "
                f"{first_line(error)}"
            ) from None
        try:
            _choose_device(torch, arguments)
            columns = Columns(torch, sharded, arguments.shard_timeout)
            try:
                yield columns
            except Exception as error:
                if not columns.told:
                    with contextlib.suppress(Exception):
                        columns.agree(error, {})
                raise
            columns.agree(None, {})  # none leaves before the output is complete
        finally:
            distributed.destroy_process_group()


@contextlib.contextmanager
def _place(arguments: argparse.Namespace, rank: int, size: int) -> Iterator[str]:
    """Where the processes find each other, for PyTorch."""
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        yield "env://"
        return
    if arguments.output in (None, "-"):
        raise InvalidArgumentError(
            "--shard columns: the processes have nowhere to meet; expected --output FILE, in a folder of all, or "
            "MASTER_ADDR and MASTER_PORT in the environment"
        )
    meeting = shards.Meeting(arguments.output, rank, size, arguments.shard_timeout)
    if rank:
        yield f"file://{meeting.find()}"
        return
    with meeting.first():
        store = meeting.part(size)  # of a rank that there is not
        try:
            yield f"file://{store}"
        finally:
            store.unlink(missing_ok=True)


def _choose_device(torch: Any, arguments: argparse.Namespace) -> None:
    """Each process of a machine takes a GPU of its own, if one is to be taken and none is named."""
    backend = arguments.backend or os.environ.get("ROWFOLD_BACKEND") or "cuda"
    local = next((int(os.environ[name]) for name in _LOCAL if os.environ.get(name, "").isdecimal()), None)
    if arguments.device in (None, "cuda") and backend == "cuda" and local is not None and torch.cuda.is_available():
        arguments.device = f"cuda:{local % torch.cuda.device_count()}"


def own_columns(total: int, columns: Columns | None) -> dict[str, int]:
    """The keywords of Model.from_file for the columns of this process."""
    if columns is None:
        return {}
    first, count = layers.shard_columns(total, columns.rank, columns.size)
    return {"out_features": count, "first_column": first, "total_columns": total}
