# SPDX-License-Identifier: MIT
"""The native library: found and loaded on first use, its structs, enums and functions as rowfold.h declares them.

A test compares everything below with the header.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from . import errors

MAX_OPS = 64
MAX_OP_PARAMS = 2
MAX_NAME = 32
MAX_DIMS = 8
MAX_RESULTS = 16
MAX_TOP = 64
BATCH_INVARIANT = 1
BORROW = 1
KEEP_FORM = 2


class Status(IntEnum):
    """rf_status: ``RF_<NAME>``."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_CHAIN = 2
    NOT_LOADED = 3
    ALREADY_LOADED = 4
    OUT_OF_MEMORY = 5
    UNSUPPORTED = 6
    UNAVAILABLE = 7
    WORKSPACE_TOO_SMALL = 8
    BUFFER_TOO_SMALL = 9
    DEVICE_ERROR = 10
    IO_ERROR = 11
    INVALID_FILE = 12
    INTERNAL = 13
    COMMUNICATION = 14


class DType(IntEnum):
    """rf_dtype: ``RF_<NAME>``, and RF_DTYPE_DEFAULT."""

    DEFAULT = 0
    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT32 = 5
    INT64 = 6


FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
INDICES = (DType.INT32, DType.INT64)


class Math(IntEnum):
    """rf_math: ``RF_MATH_<NAME>``."""

    F32 = 0
    TF32 = 1
    BF16 = 2


class Simplify(IntEnum):
    """rf_simplify: ``RF_SIMPLIFY_<NAME>``."""

    DEFAULT = 0
    NONE = 1
    EXACT = 2
    ALGEBRAIC = 3


class Memory(IntEnum):
    """rf_memory: ``RF_MEMORY_<NAME>``."""

    DEFAULT = 0
    HOST = 1
    DEVICE = 2


class Format(IntEnum):
    """rf_format: ``RF_FORMAT_<NAME>``."""

    TEXT = 0
    JSON = 1


class OpClass(IntEnum):
    """rf_op_class: ``RF_CLASS_<NAME>``."""

    LINEAR = 0
    ELEMENTWISE = 1
    SAVED = 2
    REDUCTION = 3


class RowUse(IntEnum):
    """rf_row_use: ``RF_ROW_<NAME>``."""

    NONE = 0
    NUMBER = 1
    COLUMN = 2
    COLUMNS = 3


class Op(Structure):
    """rf_op."""

    _fields_ = [
        ("kind", c_int32),
        ("num_params", c_int32),
        ("params", c_double * MAX_OP_PARAMS),
        ("vector", ctypes.c_char * MAX_NAME),
    ]


class OpInfo(Structure):
    """rf_op_info."""

    _fields_ = [
        ("size", c_size_t),
        ("kind", c_int32),
        ("op_class", c_int32),
        ("name", c_char_p),
        ("description", c_char_p),
        ("num_params", c_int32),
        ("min_params", c_int32),
        ("accepts_vector", c_int32),
        ("param_names", c_char_p * MAX_OP_PARAMS),
        ("param_defaults", c_double * MAX_OP_PARAMS),
        ("row_input", c_int32),
        ("gives_index", c_int32),
    ]


class Config(Structure):
    """rf_config."""

    _fields_ = [
        ("size", c_size_t),
        ("chain", c_char_p),
        ("ops", POINTER(Op)),
        ("num_ops", c_size_t),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("weight_dtype", c_int32),
        ("x_dtype", c_int32),
        ("y_dtype", c_int32),
        ("math", c_int32),
        ("simplify", c_int32),
        ("backend", c_char_p),
        ("device", c_char_p),
        ("threads", c_int32),
        ("flags", c_uint32),
        ("first_column", c_int64),
        ("total_columns", c_int64),
    ]


class Vector(Structure):
    """rf_vector."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("length", c_int64),
        ("dtype", c_int32),
        ("memory", c_int32),
    ]


class Weights(Structure):
    """rf_weights."""

    _fields_ = [
        ("size", c_size_t),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("ld", c_int64),
        ("bias_dtype", c_int32),
        ("memory", c_int32),
        ("flags", c_uint32),
        ("reserved", c_uint32),
        ("vectors", POINTER(Vector)),
        ("num_vectors", c_size_t),
        ("stream", c_void_p),
    ]


class Result(Structure):
    """rf_result."""

    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("ld", c_int64),
        ("dtype", c_int32),
        ("memory", c_int32),
    ]


class RowInput(Structure):
    """rf_row_input."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("length", c_int64),
        ("ld", c_int64),
        ("dtype", c_int32),
        ("memory", c_int32),
        ("columns", c_int64),
    ]


class States(Structure):
    """rf_states."""

    _fields_ = [
        ("size", c_size_t),
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("first_column", c_int64),
        ("num_columns", c_int64),
        ("chain", c_uint64),
        ("memory", c_int32),
        ("reserved", c_int32),
    ]


class StatesInfo(Structure):
    """rf_states_info."""

    _fields_ = [
        ("size", c_size_t),
        ("dtype", c_int32),
        ("num_words", c_int32),
        ("num_groups", c_int64),
        ("row_bytes", c_int64),
        ("first_column", c_int64),
        ("num_columns", c_int64),
        ("total_columns", c_int64),
        ("chain", c_uint64),
    ]


AllGather = ctypes.CFUNCTYPE(
    c_int32, c_void_p, c_void_p, c_void_p, c_size_t, c_double, POINTER(c_int32), c_void_p, c_size_t
)
AllGatherOnDevice = ctypes.CFUNCTYPE(
    c_int32, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_double, POINTER(c_int32), c_void_p, c_size_t
)


class Collective(Structure):
    """rf_collective."""

    _fields_ = [
        ("size", c_size_t),
        ("user", c_void_p),
        ("rank", c_int32),
        ("num_ranks", c_int32),
        ("timeout", c_double),
        ("all_gather", AllGather),
        ("all_gather_on_device", AllGatherOnDevice),
    ]


class ForwardArgs(Structure):
    """rf_forward_args."""

    _fields_ = [
        ("size", c_size_t),
        ("x", c_void_p),
        ("y", c_void_p),
        ("batch", c_int64),
        ("ldx", c_int64),
        ("ldy", c_int64),
        ("x_dtype", c_int32),
        ("y_dtype", c_int32),
        ("x_memory", c_int32),
        ("y_memory", c_int32),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
        ("stream", c_void_p),
        ("results", POINTER(Result)),
        ("num_results", c_size_t),
        ("row_inputs", POINTER(RowInput)),
        ("num_row_inputs", c_size_t),
        ("states", POINTER(States)),
        ("rows", POINTER(c_int64)),
        ("num_rows", c_size_t),
        ("rows_memory", c_int32),
    ]


class ModelInfo(Structure):
    """rf_model_info."""

    _fields_ = [
        ("size", c_size_t),
        ("backend", c_char_p),
        ("chain", c_char_p),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("output_features", c_int64),
        ("weight_dtype", c_int32),
        ("x_dtype", c_int32),
        ("y_dtype", c_int32),
        ("math", c_int32),
        ("simplify", c_int32),
        ("threads", c_int32),
        ("device", c_int32),
        ("loaded", c_int32),
        ("prepared_bytes", c_size_t),
        ("num_results", c_int32),
        ("num_row_inputs", c_int32),
        ("first_column", c_int64),
        ("total_columns", c_int64),
    ]


class Ways(Structure):
    """rf_ways."""

    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("two_level_rows", c_int64),
        ("irregular_rows", c_int64),
        ("tiles", c_int64),
        ("two_level_tiles", c_int64),
        ("x_terms", c_int32),
        ("weight_terms", c_int32),
        ("lone_rows", c_int64),
    ]


class ResultInfo(Structure):
    """rf_result_info."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("width", c_int64),
        ("dtype", c_int32),
        ("kind", c_int32),
        ("part", c_int32),
        ("row_input", c_int32),
    ]


class RowInputInfo(Structure):
    """rf_row_input_info."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("use", c_int32),
        ("reserved", c_int32),
    ]


class TensorInfo(Structure):
    """rf_tensor_info."""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("type_name", c_char_p),
        ("path", c_char_p),
        ("dtype", c_int32),
        ("num_dims", c_int32),
        ("shape", c_int64 * MAX_DIMS),
        ("data", c_void_p),
        ("bytes", c_int64),
        ("offset", c_int64),
    ]


class FileVector(Structure):
    """rf_file_vector."""

    _fields_ = [
        ("size", c_size_t),
        ("vector", c_char_p),
        ("tensor", c_char_p),
    ]


class FileNames(Structure):
    """rf_file_names."""

    _fields_ = [
        ("size", c_size_t),
        ("weight", c_char_p),
        ("bias", c_char_p),
        ("vectors", POINTER(FileVector)),
        ("num_vectors", c_size_t),
        ("first_column", c_int64),
        ("total_columns", c_int64),
    ]


class ModelPointer(c_void_p):
    """``rf_model *``, a type of its own so that no other pointer passes for it."""


class FilePointer(c_void_p):
    """``rf_file *``."""


class Function(NamedTuple):
    """One row of the table of functions; a function that returns rf_status raises for anything but RF_OK."""

    name: str
    restype: Any
    argtypes: tuple[Any, ...]


FUNCTIONS = (
    Function("rf_version", c_char_p, ()),
    Function("rf_status_message", c_char_p, (c_int,)),
    Function("rf_last_error", c_char_p, ()),
    Function("rf_op_count", c_size_t, ()),
    Function("rf_op_get_info", Status, (c_size_t, POINTER(OpInfo))),
    Function("rf_chain_parse", Status, (c_char_p, POINTER(Op), c_size_t, POINTER(c_size_t))),
    Function("rf_chain_format", Status, (POINTER(Op), c_size_t, c_char_p, c_size_t, POINTER(c_size_t))),
    Function("rf_preset_count", c_size_t, ()),
    Function("rf_preset_get", Status, (c_size_t, POINTER(c_char_p), POINTER(c_char_p))),
    Function("rf_backend_count", c_size_t, ()),
    Function("rf_backend_name", c_char_p, (c_size_t,)),
    Function("rf_backend_available", c_int, (c_size_t, POINTER(c_char_p))),
    Function("rf_model_create", Status, (POINTER(ModelPointer), POINTER(Config))),
    Function("rf_model_destroy", None, (ModelPointer,)),
    Function("rf_model_load_weights", Status, (ModelPointer, c_void_p, c_void_p, POINTER(Vector), c_size_t)),
    Function("rf_model_load_weights_ex", Status, (ModelPointer, POINTER(Weights))),
    Function("rf_model_update_weights", Status, (ModelPointer, POINTER(Weights))),
    Function("rf_model_forward", Status, (ModelPointer, c_void_p, c_int64, c_void_p)),
    Function("rf_model_forward_ex", Status, (ModelPointer, POINTER(ForwardArgs))),
    Function("rf_model_forward_sharded", Status, (ModelPointer, POINTER(Collective), POINTER(ForwardArgs))),
    Function("rf_model_states_info", Status, (ModelPointer, POINTER(StatesInfo))),
    Function("rf_states_merge", Status, (ModelPointer, POINTER(States), c_size_t, POINTER(ForwardArgs))),
    Function("rf_states_groups", Status, (c_int64, POINTER(c_int64), c_size_t, POINTER(c_size_t))),
    Function("rf_shard_columns", Status, (c_int64, c_int64, c_int64, POINTER(c_int64), POINTER(c_int64))),
    Function("rf_model_workspace_size", Status, (ModelPointer, c_int64, POINTER(c_size_t))),
    Function("rf_model_workspace_size_ex", Status, (ModelPointer, POINTER(ForwardArgs), POINTER(c_size_t))),
    Function("rf_model_count_ways", Status, (ModelPointer, POINTER(ForwardArgs), POINTER(Ways))),
    Function("rf_model_get_info", Status, (ModelPointer, POINTER(ModelInfo))),
    Function("rf_model_result_info", Status, (ModelPointer, c_size_t, POINTER(ResultInfo))),
    Function("rf_model_row_input_info", Status, (ModelPointer, c_size_t, POINTER(RowInputInfo))),
    Function("rf_model_explain", Status, (ModelPointer, c_int64, c_int, c_char_p, c_size_t, POINTER(c_size_t))),
    Function("rf_file_open", Status, (POINTER(FilePointer), c_char_p)),
    Function("rf_file_close", None, (FilePointer,)),
    Function("rf_file_tensor_count", c_size_t, (FilePointer,)),
    Function("rf_file_tensor", Status, (FilePointer, c_size_t, POINTER(TensorInfo))),
    Function("rf_file_find", Status, (FilePointer, c_char_p, POINTER(TensorInfo))),
    Function("rf_model_load_file", Status, (ModelPointer, c_char_p, POINTER(FileNames))),
    Function("rf_model_load_open_file", Status, (ModelPointer, FilePointer, POINTER(FileNames))),
    Function(
        "rf_model_create_from_file",
        Status,
        (POINTER(ModelPointer), POINTER(Config), c_char_p, POINTER(FileNames)),
    ),
    Function("rf_cpu_measure", Status, (c_int, POINTER(c_double), POINTER(c_double))),
)


class Library:
    """The loaded library: its functions as attributes under the names of rowfold.h, and ``path``, what was loaded."""

    def __init__(self, path: str) -> None:
        self.path = path
        cdll = ctypes.CDLL(path)
        last_error: Any = None
        for row in FUNCTIONS:
            try:
                function: Any = getattr(cdll, row.name)
            except AttributeError:
                raise errors.LibraryError(
                    f"{path} has no {row.name}: it is of another version than this package"
                ) from None
            function.argtypes = row.argtypes
            function.restype = c_int if row.restype is Status else row.restype
            if row.name == "rf_last_error":
                last_error = function
            if row.restype is Status:
                function.errcheck = self._checked
            setattr(self, row.name, function)
        self._last_error = last_error
        # For who calls often: gives the status, which is then to be checked. An errcheck would cost a Python call.
        self.forward_ex: Any = cdll["rf_model_forward_ex"]
        self.forward_ex.argtypes, self.forward_ex.restype = (ModelPointer, POINTER(ForwardArgs)), c_int

    def _checked(self, status: int, function: Any, arguments: Any) -> int:
        return self.check(status)

    def check(self, status: int) -> int:
        """Raises what a status of this thread's last call means, unless it is RF_OK."""
        if status:
            message = self._last_error() or self.rf_status_message(status)
            name = Status(status).name if status in Status.__members__.values() else None
            raise errors.for_status(name, message.decode("utf-8", "replace"))
        return status

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"librowfold has no function {name!r} in the table")


def candidates() -> Iterator[str]:
    """Where the library may be, best first: paths, and last a bare soname for the system's own search.

    ``$ROWFOLD_LIBRARY`` alone if it is set; else the library beside this file, as in a wheel; else what ``make
    install`` noted; else, for a package that runs from a source tree, the newest build in that tree; else the system.
    """
    forced = os.environ.get("ROWFOLD_LIBRARY")
    if forced:
        yield forced
        return
    beside = Path(__file__).with_name("librowfold.so")
    if beside.is_file():
        yield str(beside)
    installed = _installed_path()
    if installed:
        yield installed
    root = Path(__file__).resolve().parents[2]
    if (root / "lib" / "rowfold.h").is_file():
        built = [*root.glob("lib/.libs/librowfold.so"), *root.glob("*/lib/.libs/librowfold.so")]
        yield from map(str, sorted(built, key=lambda path: path.stat().st_mtime, reverse=True))
    found = ctypes.util.find_library("rowfold")
    if found:
        yield found


def _installed_path() -> str | None:
    try:
        config = importlib.import_module("._config", __package__)
    except ImportError:
        return None
    return str(config.LIBRARY)


def read_text(call: Callable[[Any, int, Any], object]) -> str:
    """The text of a function whose last arguments are (text, size, needed), whatever its length."""
    needed = c_size_t()
    size = 4096
    while True:
        text = ctypes.create_string_buffer(size)
        try:
            call(text, size, ctypes.byref(needed))
        except errors.BufferTooSmallError:
            if needed.value <= size:
                raise
            size = needed.value
        else:
            return text.value.decode("utf-8", "replace")


_loaded: Library | None = None
_loading = threading.Lock()


def _after_fork_in_child() -> None:
    """The thread that held the lock, if one did, is not in the child."""
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def load() -> Library:
    """The library, loaded on the first call. LibraryError says where it was looked for."""
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def _load() -> Library:
    tried = []
    for path in candidates():
        try:
            return Library(path)
        except errors.LibraryError:
            raise
        except OSError as error:
            tried.append(f"{path} ({error})")
    where = "; tried " + ", ".join(tried) if tried else ""
    raise errors.LibraryError(
        f"the native library librowfold was not found{where}. Build and install it, or set ROWFOLD_LIBRARY to its path"
    )
