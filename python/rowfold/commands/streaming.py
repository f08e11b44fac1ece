# SPDX-License-Identifier: MIT
"""A model over a file of rows, in batches that fit a memory cap: what ``run`` and ``score`` share."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import arrays
from .. import rows as row_inputs
from .._lib import INDICES, DType, RowUse
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..files import tensors
from ..model import Model
from . import options, shards
from .columns import Columns
from .output import interruptible, require_place, stop_if_asked
from .rows import Array, Rows, Same, is_stream, open_rows, tensor_of
from .writers import Named, Nothing, Writer, ending, require_ending, share, writer

OUTPUT_DTYPES = ("float32", "float64", "float16")
LEAST_ROWS, MOST_ROWS = 1, 1 << 16
# What is written of the results of some rows, given what the rows brought.
Part = Callable[[Sequence[Array], Mapping[str, Array]], Sequence[Array]]


def add_files(parser: argparse.ArgumentParser, shape: str, formats: str, required: bool) -> None:
    """Where rows come from and results go, and how much memory that may take."""
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help=f".npy, FILE.safetensors:TENSOR, or - for an .npy from standard input, of shape {shape}",
    )
    parser.add_argument("--output", required=required, metavar="FILE", help=f"{formats}, or - for standard output")
    parser.add_argument(
        "--max-memory", type=_size, default="256M", metavar="SIZE", help="to use beside the weights (256M)"
    )
    parser.add_argument("--dtype", choices=OUTPUT_DTYPES, help="of the output (float32; float64 for float64 weights)")
    parser.add_argument("--force", action="store_true", help="replace an output file that exists")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def require_files(shard: str, named: Sequence[str]) -> None:
    """Raises InvalidArgumentError for what only one of several processes could read."""
    for text in named:
        path, _, _ = tensor_of(text)
        if path == "-" or is_stream(path):
            raise InvalidArgumentError(
                f"--shard {shard}: {text} is a stream; expected a file, which every process reads"
            )


def meeting_of(arguments: argparse.Namespace, named: Sequence[str]) -> shards.Meeting | None:
    """The processes that share the rows of the files ``named``, if they do."""
    if arguments.shard is None:
        return None
    rank, size = shards.numbers()
    require_files(arguments.shard, named)
    if arguments.shard == "columns":
        return None
    if arguments.output is None:
        raise InvalidArgumentError(
            "--shard batch: the processes have nowhere to meet; expected --output FILE, in a folder of all"
        )
    output = Path(arguments.output)
    if arguments.output == "-" or (output.exists() and not output.is_file()):
        raise InvalidArgumentError(f"--shard batch: the output {output} is no file; expected one, in a folder of all")
    return shards.Meeting(output, rank, size, arguments.shard_timeout)


class Stream:
    """A command's files, checked as far as that can be before the weights are read.

    ``labels`` are the sources of the row inputs by name: what the command line calls each, and its file or number.
    ``derived`` makes further ones of the values of these. ``columns``: other processes have columns of the layer, and
    all rows go through all of them; the first one writes.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        labels: Mapping[str, tuple[str, str]],
        derived: Mapping[str, Callable[[Mapping[str, Array]], Array]] | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.arguments, self.derived, self.columns = arguments, derived or {}, columns
        self.labels = {name: label for name, (label, _) in labels.items()}
        writes = arguments.output is not None and (columns is None or columns.rank == 0)
        self.output = _output(arguments.output) if writes else None
        named = [arguments.input, *(text for _, text in labels.values() if _number(text) is None)]
        if named.count("-") > 1:
            raise InvalidArgumentError("standard input, -, is named twice; expected a file for one of them")
        read = [path for path, _, _ in map(tensor_of, named) if path != "-"] + [arguments.weights]
        place: dict[str, Any] = {"streams": True, "force": arguments.force}
        if self.output is not None:
            require_place(self.output, **place, inputs=read)
            require_ending(self.output)
        self.x = open_rows(arguments.input, f"--input {arguments.input}")
        self.lead = self.x.shape[:-1]
        wide = self.x.dtype is DType.FLOAT64
        self.rows = {name: self._row_input(*source, wide) for name, source in labels.items()}
        if self.output is not None:
            require_place(self.output, **place, inputs=_shards(read))

    def _row_input(self, label: str, text: str, wide: bool) -> Rows:
        number = _number(text)
        if number is not None:
            return Same(number, DType.FLOAT64 if wide else DType.FLOAT32, self.lead)
        rows = open_rows(text, label, column=True)
        if self.x.shape and rows.shape[:-1] != self.lead:
            if rows.shape[:-1] != (*self.lead, 1):
                raise InvalidArgumentError(
                    f"{label} has shape {rows.shape[:-1]}; expected {self.lead}, a value for each row of "
                    f"{self.arguments.input}"
                )
            rows.drop()  # (..., 1), as results have it
        return rows

    @contextlib.contextmanager
    def model(self) -> Iterator[Model]:
        """The model that the command line describes, fit for the files."""
        arguments, x = self.arguments, self.x
        more: dict[str, Any] = {}
        if x.dtype is DType.BFLOAT16:  # which numpy may only know as uint16
            more["x_dtype"] = arrays.dtype_name(x.dtype)
        if arguments.dtype:
            more["y_dtype"] = arguments.dtype
        with options.load(arguments, self.columns, batch_invariant=True, **more) as model, interruptible():
            info = model.info
            if not x.shape or x.shape[-1] != info.in_features:
                expected = f"(..., {info.in_features})"
                raise InvalidArgumentError(f"{arguments.input} has shape {x.shape}; expected {expected}")
            if (x.dtype is DType.FLOAT64) != (info.dtype == "float64"):
                raise ArgumentTypeError(
                    f"{arguments.input} is {arrays.dtype_name(x.dtype)}; float64 goes with float64 weights only, "
                    f"and {arguments.weights} has {info.dtype} ones"
                )
            self._check_rows({n: use for n, use in info.row_inputs.items() if n not in self.derived}, info.dtype)
            yield model

    def _check_rows(self, uses: Mapping[str, str], weights: str) -> None:
        row_inputs.check_names(dict(self.rows), {name: RowUse[use.upper()] for name, use in uses.items()})
        for name, use in uses.items():
            if use == "columns":
                raise InvalidArgumentError(
                    f"the chain asks for several columns of each row, by #{name}, which no file gives; expected no "
                    "gather"
                )
            dtype, label = arrays.dtype_name(self.rows[name].dtype), self.labels[name]
            floats = self.rows[name].dtype not in INDICES
            if floats == (use == "column"):
                expected = "int64 or int32, a column for each row" if floats else "a floating-point type"
                raise ArgumentTypeError(f"{label} has dtype {dtype}; expected {expected}")
            if use == "number" and (dtype == "float64") != (weights == "float64"):
                raise ArgumentTypeError(
                    f"{label} has dtype {dtype}, and the weights {weights}; float64 goes with float64 only"
                )

    def run(
        self,
        model: Model,
        results: Sequence[Named],
        part: Part,
        meeting: shards.Meeting | None = None,
        own: BinaryIO | None = None,
        behind: Callable[[BinaryIO], None] | None = None,
    ) -> None:
        """All rows through the model, and what ``part`` makes of them into the output.

        With a ``meeting`` those of this process, to the file ``own``, or, by the first, all into the output. ``behind``
        reads what another process has written to its file behind its rows.
        """
        wrote: Any = contextlib.nullcontext(Nothing())
        span = (0, len(self.x))
        if self.output is not None:
            form = ending(self.output, results)
            wrote = writer(self.output, form, results) if own is None else share(own, self.output, results)
        if meeting is not None:
            span = shards.own_rows(len(self.x), meeting.rank, meeting.size)
        with wrote as file:
            other = own is not None or (self.columns is not None and self.columns.rank > 0)
            self._span(model, results, span, file, part, self.arguments.quiet or other)
            if meeting is not None and own is None:

                def take(rank: int, rows: BinaryIO) -> None:
                    self._append(results, meeting, file, rank, rows)
                    if behind is not None:
                        behind(rows)

                meeting.collect(take)

    def _span(
        self, model: Model, results: Sequence[Named], span: tuple[int, int], file: Writer, part: Part, quiet: bool
    ) -> None:
        batch = self._batch(model, results)
        if self.columns is not None:
            batch = self.columns.least("batch", batch, {"rows": len(self.x)})
        outs = [np.empty((batch, r.features), np.dtype(r.dtype)) for r in model.info.results]
        with _progress(span[1] - span[0], quiet) as bar:
            for first in range(*span, batch):
                stop_if_asked()
                count = min(batch, span[1] - first)
                self._some(model, first, count, outs, file, part)
                if bar is not None:
                    bar.update(count)

    def _append(
        self, results: Sequence[Named], meeting: shards.Meeting, file: Writer, rank: int, rows: BinaryIO
    ) -> None:
        """What another process has written, behind the rows of those before it."""
        begin, end = shards.own_rows(len(self.x), rank, meeting.size)
        for i, result in enumerate(results):
            file.append(i, rows, (end - begin) * prod(result.shape[len(self.lead) :]) * result.dtype.itemsize)

    def _some(self, model: Model, first: int, count: int, outs: Sequence[Array], file: Writer, part: Part) -> None:
        x = self.x.take(first, count)
        values: dict[str, Any] = {name: rows.take(first, count) for name, rows in self.rows.items()}
        parts = [out[:count] for out in outs]
        try:
            more: dict[str, Any] = {name: make(values) for name, make in self.derived.items()}
            if self.columns is None:
                model(x, out=self._outs(model, parts), **values, **more)
            else:
                for out, made in zip(parts, self.columns.results(model, x, {**values, **more})):
                    out[...] = made
        except InvalidArgumentError as error:
            raise InvalidArgumentError(self._located(str(error), first)) from None
        file.write(part(parts, values))
        self.x.done(first, count)
        for rows in self.rows.values():
            rows.done(first, count)

    @staticmethod
    def _outs(model: Model, parts: Sequence[Array]) -> Any:
        """The arrays of the results as a call takes them: a pair for topk, and one result without a list."""
        outs: list[Any] = []
        for part, result in zip(parts, model.info.results):
            if result.part:
                outs[-1] = (outs[-1], part)
            else:
                outs.append(part)
        return outs[0] if len(outs) == 1 else outs

    def _located(self, message: str, first: int) -> str:
        """A sentence about a row of a batch as one about the file."""
        for name, label in self.labels.items():
            message = message.replace(f'row input "{name}"', label)
        return re.sub(r"in row (\d+)", lambda m: f"in row {first + int(m[1])}", message)

    def _batch(self, model: Model, results: Sequence[Named]) -> int:
        """The most rows whose x, results and workspace stay within five eighths of the cap, or one row.

        The rest is for what the system maps around the rows asked for, up to some MiB with large pages.
        """
        info, cap = model.info, self.arguments.max_memory
        row: int = self.x.shape[-1] * self.x.itemsize
        row += sum(result.features * np.dtype(result.dtype).itemsize for result in info.results)
        row += sum(rows.itemsize for rows in self.rows.values())
        if self.columns is not None:
            row += 16 * model.states_info.num_words * 8 * (2 + self.columns.size)  # of groups, as many as there may be

        def need(batch: int) -> int:
            return batch * row + model.workspace_size(batch)

        if need(LEAST_ROWS) > cap:
            raise InvalidArgumentError(f"--max-memory is {cap} bytes; a single row takes {need(LEAST_ROWS)}")
        low, high = LEAST_ROWS, min(max(len(self.x), 1), MOST_ROWS)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if need(middle) <= cap // 8 * 5 else (low, middle - 1)
        return low


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _output(text: str) -> Path:
    """Where to write. Raises InvalidArgumentError for a terminal."""
    if text == "-":
        if sys.stdout.isatty():
            raise InvalidArgumentError("--output -: standard output is a terminal; expected a file or a pipe")
        return Path("/dev/stdout")
    return Path(text)


def _shards(paths: Sequence[str]) -> Iterator[str]:
    """The files that the named ones lead to."""
    for path in paths:
        if path.endswith(".json"):
            yield from {tensor.path for tensor in tensors(path)}


def _progress(total: int, quiet: bool) -> Any:
    """A bar with rate and time left on a terminal's standard error, where tqdm is installed."""
    try:
        tqdm: Any = importlib.import_module("tqdm")
    except ModuleNotFoundError:
        return contextlib.nullcontext()
    # disable=None: none where standard error is no terminal
    return tqdm.tqdm(total=total, unit="row", unit_scale=True, disable=True if quiet else None)


def _size(text: str) -> int:
    """Bytes of '512', '64K', '256M' or '2G'."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, unit = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    try:
        value = int(float(number) * unit)
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a size like 256M or 2G")
    return value
