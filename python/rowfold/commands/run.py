# SPDX-License-Identifier: MIT
"""``rowfold run``: a model over a file of rows, in batches that fit a memory cap."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .. import arrays, npz
from .._lib import DType
from ..errors import ArgumentTypeError, InvalidArgumentError, InvalidFileError
from ..files import mapped, tensors
from ..model import Model
from . import options
from .output import interruptible, require_place, stream_or_complete

Array = np.ndarray[Any, Any]
EXAMPLES = """examples:
  rowfold run 'linear | logsumexp' --weights model.safetensors --input x.npy --output y.npy
  rowfold run 'linear | div(@temperature) | max' --weights model.safetensors --weight head.weight \\
      --vector temperature=head.temperature --input x.safetensors:hidden --output y.npy --max-memory 64M
  python make_rows.py | rowfold run 'linear | max' --weights model.npz --input - --output - | python use.py
"""
OUTPUT_DTYPES = ("float32", "float64", "float16")
LEAST_ROWS, MOST_ROWS = 1, 1 << 16


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds ``run`` to the sub-commands."""
    parser = commands.add_parser(
        "run",
        help="run a model over a file of rows",
        description="Computes the chain for every row of a file. The input is mapped, so it may be larger than memory; "
        "the output appears under its name only when it is complete. A link is followed; a device or a pipe is written "
        "into; what is read is never replaced.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("chain", metavar="CHAIN", help="chain text, or preset:NAME")
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help=".npy, FILE.safetensors:TENSOR, or - for an .npy from standard input, of shape (..., in_features)",
    )
    parser.add_argument(
        "--output", required=True, metavar="FILE", help=".npy, (..., 1 or out_features), or - for standard output"
    )
    parser.add_argument(
        "--max-memory", type=_size, default="256M", metavar="SIZE", help="to use beside the weights (256M)"
    )
    parser.add_argument("--dtype", choices=OUTPUT_DTYPES, help="of the output (float32; float64 for float64 weights)")
    parser.add_argument("--force", action="store_true", help="replace an output file that exists")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")
    options.add_weights(parser, required=True)
    options.add_model(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the model over the file; the exit status."""
    output = _output(arguments.output)
    place: dict[str, Any] = {"streams": True, "force": arguments.force}
    require_place(output, **place, inputs=_named(arguments))
    _require_npy(output)
    rows = _open_input(arguments.input)
    require_place(output, **place, inputs=_shards(arguments))
    more: dict[str, Any] = {}
    if rows.dtype is DType.BFLOAT16:  # which numpy may only know as uint16
        more["x_dtype"] = arrays.dtype_name(rows.dtype)
    if arguments.dtype:
        more["y_dtype"] = arguments.dtype
    with options.load(arguments, batch_invariant=True, **more) as model, interruptible():
        info = model.info
        if len(info.results) > 1 or info.row_inputs:
            have = (
                f"{len(info.results)} results" if len(info.results) > 1 else f"the row input #{[*info.row_inputs][0]}"
            )
            raise InvalidArgumentError(f"the chain has {have}; rowfold run writes one result, and gives no row inputs")
        if not rows.shape or rows.shape[-1] != model.info.in_features:
            expected = f"(..., {model.info.in_features})"
            raise InvalidArgumentError(f"{arguments.input} has shape {rows.shape}; expected {expected}")
        if (rows.dtype is DType.FLOAT64) != (model.info.dtype == "float64"):
            raise ArgumentTypeError(
                f"{arguments.input} is {arrays.dtype_name(rows.dtype)}; float64 goes with float64 weights only, "
                f"and {arguments.weights} has {model.info.dtype} ones"
            )
        batch = _batch(model, rows, arguments.max_memory)
        y_dtype = np.dtype(model.info.y_dtype)
        with stream_or_complete(output) as file:
            _write_header(file, (*rows.shape[:-1], model.info.output_features), y_dtype)
            with _progress(rows, arguments.quiet) as bar:
                _fold(model, rows, batch, y_dtype, file, bar)
    return 0


def _output(text: str) -> Path:
    """Where to write. Raises InvalidArgumentError for a terminal."""
    if text == "-":
        if sys.stdout.isatty():
            raise InvalidArgumentError("--output -: standard output is a terminal; expected a file or a pipe")
        return Path("/dev/stdout")
    return Path(text)


def _require_npy(path: Path) -> None:
    """Raises InvalidArgumentError for a name that says it is something else than an .npy."""
    if path.suffix not in ("", ".npy") and not (path.exists() and not path.is_file()):
        raise InvalidArgumentError(f"--output {path}: ends in {path.suffix}, but an .npy is written; name it so")


def _fold(model: Model, rows: Rows, batch: int, y_dtype: np.dtype[Any], file: BinaryIO, bar: Any) -> None:
    y = np.empty((batch, model.info.output_features), y_dtype)
    for first in range(0, len(rows), batch):
        x = rows.take(first, min(batch, len(rows) - first))
        part = y[: len(x)]
        model(x, out=part)
        file.write(part.data)
        rows.done(first, len(x))
        if bar is not None:
            bar.update(len(x))


def _named(arguments: argparse.Namespace) -> list[str]:
    """The files that the command line names to be read."""
    path, _, _ = _tensor_of(arguments.input)
    return [arguments.weights] if path == "-" else [path, arguments.weights]


def _shards(arguments: argparse.Namespace) -> Iterator[str]:
    """The files that the named ones lead to."""
    for path in _named(arguments):
        if path.endswith(".json"):
            yield from {tensor.path for tensor in tensors(path)}


def _tensor_of(text: str) -> tuple[str, str, bool]:
    """A file and a tensor in it, and whether --input names one."""
    path, colon, tensor = text.rpartition(":")
    named = bool(colon) and path.endswith((".safetensors", ".json"))
    return (path, tensor, True) if named else (text, "", False)


def _open_input(text: str) -> Rows:
    path, tensor, named = _tensor_of(text)
    if named:
        return Rows(*mapped(path, tensor))
    if text.endswith((".safetensors", ".json")):
        names = ", ".join(found.name for found in tensors(text)[:8])
        raise InvalidArgumentError(f"--input {text}: names no tensor; expected {text}:TENSOR, with one of {names}")
    if text == "-" or _is_stream(text):
        return Piped(text)
    x = npz.mapped(text)
    return (Rows if x.flags.c_contiguous else Scattered)(x, _dtype(x.dtype, text))


def _is_stream(path: str) -> bool:
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
    return False


def _dtype(dtype: np.dtype[Any], text: str) -> DType:
    if not dtype.isnative:
        raise ArgumentTypeError(f"--input {text}: has dtype {dtype}, of the other byte order")
    return arrays.numpy_to_dtype(dtype, f"--input {text}", DType.DEFAULT)


class Rows:
    """The rows of an array (..., in_features) that lies in a file in their order, as batches are taken of them."""

    def __init__(self, x: Array, dtype: DType) -> None:
        self.x, self.dtype, self.shape, self.itemsize = x, dtype, x.shape, x.dtype.itemsize

    def __len__(self) -> int:
        return math.prod(self.shape[:-1])

    def take(self, first: int, count: int) -> Array:
        """These rows, (count, in_features)."""
        return self.x.reshape(-1, self.shape[-1])[first : first + count]

    def done(self, first: int, count: int) -> None:
        """Lets go of the pages of rows that are done: they would count as this process's until others need them."""
        width = self.shape[-1] * self.itemsize
        self._forget(first * width, count * width)

    def _forget(self, offset: int, size: int) -> None:
        base: Any = self.x
        while isinstance(base, np.ndarray):
            base = base.base
        if not isinstance(base, mmap.mmap) or not size:
            return
        begin = self.x.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data + offset
        end = begin + size
        begin -= begin % mmap.PAGESIZE
        base.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class Scattered(Rows):
    """Rows whose numbers do not lie together, as in an array in Fortran order: a batch is gathered."""

    def take(self, first: int, count: int) -> Array:
        """These rows, gathered."""
        return np.ascontiguousarray(self.x[np.unravel_index(np.arange(first, first + count), self.shape[:-1])])

    def done(self, first: int, count: int) -> None:
        """Lets go of all: every page holds some number of every row."""
        self._forget(0, math.prod(self.shape) * self.itemsize)


class Piped(Rows):
    """Rows that come one after the other, from standard input or a pipe."""

    def __init__(self, text: str) -> None:
        self.name = "standard input" if text == "-" else text
        self.file: BinaryIO = sys.stdin.buffer if text == "-" else open(text, "rb")
        self.shape, self.fortran, dtype = npz.stream_header(self.file, self.name)
        if self.fortran and len(self.shape) > 1:
            raise InvalidArgumentError(
                f"{self.name}: is in Fortran order, whose rows do not come one after the other; name the file, or "
                "write it in C order, as numpy.ascontiguousarray gives it"
            )
        self.dtype, self.kind, self.itemsize = _dtype(dtype, text), dtype, dtype.itemsize

    def take(self, first: int, count: int) -> Array:
        """The next rows."""
        wanted = count * self.shape[-1] * self.itemsize
        data = self.file.read(wanted)
        if len(data) != wanted:
            raise InvalidFileError(f"{self.name}: ends after {first} rows and a part; expected {len(self)}")
        return np.frombuffer(data, self.kind).reshape(count, self.shape[-1])

    def done(self, first: int, count: int) -> None:
        """Nothing is mapped."""


def _batch(model: Model, rows: Rows, cap: int) -> int:
    """The most rows whose x, y and workspace stay within three quarters of the cap, or one row.

    The rest is for what the system maps around the rows asked for, up to some MiB with large pages.
    """
    info = model.info
    row: int = rows.shape[-1] * rows.itemsize + info.output_features * np.dtype(info.y_dtype).itemsize

    def need(batch: int) -> int:
        return batch * row + model.workspace_size(batch)

    if need(LEAST_ROWS) > cap:
        raise InvalidArgumentError(f"--max-memory is {cap} bytes; a single row takes {need(LEAST_ROWS)}")
    low, high = LEAST_ROWS, min(max(len(rows), 1), MOST_ROWS)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if need(middle) <= cap - cap // 4 else (low, middle - 1)
    return low


def _write_header(file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)


def _progress(rows: Rows, quiet: bool) -> Any:
    """A bar with rate and time left on a terminal's standard error, where tqdm is installed."""
    try:
        tqdm: Any = importlib.import_module("tqdm")
    except ModuleNotFoundError:
        return contextlib.nullcontext()
    # disable=None: none where standard error is no terminal
    return tqdm.tqdm(total=len(rows), unit="row", unit_scale=True, disable=True if quiet else None)


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
