# SPDX-License-Identifier: MIT
"""Several processes that write one file: each the results of some rows, the first one the whole.

They were started by torchrun, mpirun, srun or by hand, and need nothing of these but their number: they meet in the
output's folder. The first process leaves a note there under a lock, and each other one its rows, under a lock, too. A
lock that is free without the work being done is that of a process that has died. What an earlier run has left behind is
locked by nobody, and names no one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import CommunicationError, InvalidArgumentError

# Who says which of how many processes this is: torchrun, Open MPI, MPICH and Intel MPI, Slurm.
NUMBERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_PAUSE = 0.05


def numbers() -> tuple[int, int]:
    """Which of how many processes this is. Raises InvalidArgumentError where the environment does not say."""
    for rank_name, size_name in NUMBERS:
        if rank_name not in os.environ and size_name not in os.environ:
            continue
        given = os.environ.get(rank_name, ""), os.environ.get(size_name, "")
        if all(text.isdecimal() for text in given) and int(given[0]) < int(given[1]):
            return int(given[0]), int(given[1])
        raise InvalidArgumentError(
            f"--shard: {rank_name} is {given[0]!r} and {size_name} {given[1]!r}; expected a number below that of all"
        )
    raise InvalidArgumentError(
        "--shard: expected RANK and WORLD_SIZE in the environment, or what torchrun, mpirun or srun set"
    )


def own_rows(count: int, rank: int, size: int) -> tuple[int, int]:
    """First and last (exclusive) of the rows of one process."""
    return count * rank // size, count * (rank + 1) // size


class Meeting:
    """The processes of one run, as one of them sees them. ``timeout`` seconds to wait for one that does not come."""

    def __init__(self, output: Path, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        target = Path(os.path.realpath(output))
        self._folder, self._name = target.parent, target.name[:180]
        self._note = self._folder / f".{self._name}.shards"
        self._token = ""

    def part(self, rank: int) -> Path:
        """Where the rows of a process go."""
        return self._folder / f".{self._name}.{self._token}.{rank}"

    def _done(self, rank: int) -> Path:
        return self.part(rank).with_name(self.part(rank).name + ".done")

    def attend(self) -> contextlib.AbstractContextManager[BinaryIO | None]:
        """What a process does all of its work in; of all but the first the file for its rows."""
        return self.first() if self.rank == 0 else self.other()

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """What the first process does all of its work in."""
        self._token = secrets.token_hex(8)
        # Made under another name: whoever sees the note finds it locked.
        made = self._note.with_name(f"{self._note.name}.{self._token}")
        with open(made, "x") as note:
            try:
                fcntl.flock(note, fcntl.LOCK_EX)
                json.dump({"token": self._token, "size": self.size}, note)
                note.flush()
                os.replace(made, self._note)
                yield
            finally:
                for path in (self._note, made):
                    with contextlib.suppress(FileNotFoundError):
                        if _same(path, note):
                            path.unlink()
                for rank in range(1, self.size):
                    for path in (self.part(rank), self._done(rank)):
                        path.unlink(missing_ok=True)

    def collect(self, take: Callable[[int, BinaryIO], None]) -> None:
        """Gives ``take`` the number and the file of each other process, waiting for them in their order.

        Raises what one of them has failed with.
        """
        end = time.monotonic() + self.timeout
        for rank in range(1, self.size):
            while not self._is_done(rank):
                if not self.part(rank).exists() and time.monotonic() > end:
                    raise CommunicationError(
                        f"rank {rank} of {self.size} has not come within {self.timeout:g} seconds (--shard-timeout)"
                    )
                time.sleep(_PAUSE)
            with open(self.part(rank), "rb") as rows:
                take(rank, rows)
            self.part(rank).unlink()

    def _is_done(self, rank: int) -> bool:
        # In this order: a file is locked before it is there, and free once what was done is said.
        there = self.part(rank).exists()
        alive = _is_locked(self.part(rank))
        try:
            says = self._done(rank).read_text()
        except FileNotFoundError:
            if there and not alive and not self._done(rank).exists():
                raise CommunicationError(f"rank {rank} of {self.size} ended before its rows were done") from None
            return False
        if says:
            raise CommunicationError(f"rank {rank} of {self.size} failed: {says}")
        return True

    @contextlib.contextmanager
    def other(self) -> Iterator[BinaryIO]:
        """Where any other process writes its rows."""
        self._token = self._find()
        says = "it was interrupted"
        made = self.part(self.rank).with_name(self.part(self.rank).name + ".new")
        with open(made, "xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.replace(made, self.part(self.rank))
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                says = ""
            except Exception as error:
                says = str(error)
                raise
            finally:
                if _is_locked(self._note) and self._read().get("token") == self._token:
                    made.write_text(says)
                    os.replace(made, self._done(self.rank))
                else:
                    self.part(self.rank).unlink(missing_ok=True)
                    if not says:
                        raise CommunicationError("rank 0 is gone, and its output with it")

    def find(self) -> Path:
        """A file of the first process's run, once that is there, for all others: that of a rank that there is not."""
        self._token = self._find()
        return self.part(self.size)

    def _find(self) -> str:
        """What the first process of this run calls its files, once it is there."""
        end = time.monotonic() + self.timeout
        while True:
            if _is_locked(self._note):
                note = self._read()
                if note:
                    if note["size"] != self.size:
                        raise InvalidArgumentError(
                            f"--shard: rank 0 counts {note['size']} processes, and rank {self.rank} {self.size}"
                        )
                    return str(note["token"])
            if time.monotonic() > end:
                raise CommunicationError(f"rank 0 has not come within {self.timeout:g} seconds (--shard-timeout)")
            time.sleep(_PAUSE)

    def _read(self) -> dict[str, object]:
        try:
            note: dict[str, object] = json.loads(self._note.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return note


def _is_locked(path: Path) -> bool:
    """Whether a process holds the file."""
    try:
        with open(path, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except FileNotFoundError:
        pass
    return False


def _same(path: Path, file: object) -> bool:
    return os.path.samestat(os.stat(path), os.fstat(file.fileno()))  # type: ignore[attr-defined]
