# SPDX-License-Identifier: MIT
"""Model: a linear layer, elementwise operators and a row reduction, planned once and run many times."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from math import prod
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np

from . import _lib, arguments, arrays, files, npz, rows
from ._lib import DType, Memory, load
from .calls import TensorCalls
from .errors import AlreadyLoadedError, ArgumentTypeError, ClosedError, InvalidArgumentError, NotLoadedError
from .handle import Handle, ModelInfo, Ways
from .inputs import Inputs
from .kinds import kind_of
from .ops import Chain, Op, Operator, encode
from .outputs import Outputs
from .shards import States, StatesInfo, native_part, part_matrix, state_groups, states_info
from .tensors import TorchKind


class Model:
    """A chain of operators with its weights: ``y = model(x)``.

    >>> W, b = np.ones((1000, 64), np.float32), np.zeros(1000, np.float32)
    >>> with rowfold.Model("linear(64, 1000) | logsumexp | gelu") as model:
    ...     _ = model.load_weights(W, b)  # W (out_features, in_features), b (out_features,)
    ...     y = model(np.ones((2, 8, 64), np.float32))  # x (..., in_features)
    >>> y.shape  # (..., 1), or (..., out_features) without a reduction
    (2, 8, 1)

    Any number of threads may call a loaded model at once; calls release the GIL. A model that came from a file, or was
    loaded with ``keep=True``, can be pickled and copied: the copy is made from the file or the arrays.

    Parameters
    ----------
    chain
        Chain text, ``"preset:NAME"``, or operators of ``rowfold.ops``. The linear layer comes first.
    in_features, out_features
        Sizes of the linear layer where the chain does not say them; what neither says is the weight's, once it is
        loaded.
    dtype
        Of the weights: float32, float64, float16 or bfloat16, as a name or as numpy's, ml_dtypes' or another
        framework's object.
    x_dtype
        The one dtype accepted for x. By default any that goes with the weights: float64 with float64, the other three
        mix.
    y_dtype
        Of the result; float64 for float64 weights, else float32.
    math
        How products of float32 weights may be computed: ``"f32"``, ``"tf32"`` or ``"bf16"``. They are bounds on what
        may be lost: a GPU computes bf16 as tf32, a CPU both as f32.
    simplify
        Which rewrites are allowed: ``"none"``, ``"exact"`` (the same bits) or ``"algebraic"`` (equal over the reals).
    device
        ``"cpu"``, ``"cuda"`` (the calling thread's current CUDA device) or ``"cuda:1"``; None for the best there is.
    threads
        CPU threads of one call; None for $ROWFOLD_NUM_THREADS, else all cores that this process may use.
    backend
        One of ``rowfold.backends()`` by name; None for $ROWFOLD_BACKEND, which is not looked at where ``device`` is
        given, else the best that can run the model.
    batch_invariant
        On a GPU too, a row's bits do not depend on the batch it is in. On a CPU they never do.
    cast
        Whether lists, numbers and numpy's arrays of other types (integers, booleans, float64 for a model that is not)
        are converted to the model's type, and columns to int64. By default they are refused: a conversion may round.
    first_column, total_columns
        The model is a shard: it has columns ``first_column`` to ``first_column + out_features - 1`` of
        ``total_columns``, and rows of W for these alone. It gives ``states(x)``, of which ``merge_states`` makes the
        results; columns in and among these count in the whole layer. ``out_features`` may be 0.

    Raises
    ------
    ChainError (ValueError), InvalidArgumentError (ValueError), ArgumentTypeError (TypeError), UnsupportedError and
    UnavailableError (RuntimeError), OutOfMemoryError (MemoryError).

    """

    def __init__(
        self,
        chain: str | Chain | Op | Operator | Iterable[Op | Operator],
        in_features: int | None = None,
        out_features: int | None = None,
        *,
        dtype: Any = "float32",
        x_dtype: Any = None,
        y_dtype: Any = None,
        math: str = "f32",
        simplify: str = "algebraic",
        device: str | None = None,
        threads: int | None = None,
        backend: str | None = None,
        batch_invariant: bool = False,
        cast: bool = False,
        first_column: int = 0,
        total_columns: int | None = None,
    ) -> None:
        config, chain = _lib.Config(size=ctypes.sizeof(_lib.Config)), arguments.as_chain(chain)
        if isinstance(chain, str):
            config.chain = encode(chain, "chain")
        else:
            config.ops, config.num_ops = chain.native(), len(chain)
        config.in_features = arguments.size(in_features, "in_features")
        empty = out_features == 0 and total_columns is not None
        config.out_features = 0 if empty else arguments.size(out_features, "out_features")
        config.first_column = arguments.integer(first_column, "first_column", 64)
        config.total_columns = 0 if total_columns is None else arguments.integer(total_columns, "total_columns", 64, 1)
        config.weight_dtype = arrays.parse_dtype(dtype, "dtype")
        config.x_dtype = DType.DEFAULT if x_dtype is None else arrays.parse_dtype(x_dtype, "x_dtype")
        config.y_dtype = DType.DEFAULT if y_dtype is None else arrays.parse_dtype(y_dtype, "y_dtype")
        config.math = arguments.choice(_lib.Math, math, "math")
        config.simplify = arguments.choice(_lib.Simplify, simplify, "simplify")
        config.backend = None if backend is None else encode(backend, "backend")
        config.device = None if device is None else encode(device, "device")
        config.threads = 0 if threads is None else arguments.integer(threads, "threads", 32, least=1)
        config.flags = _lib.BATCH_INVARIANT if batch_invariant else 0
        self._x_fixed, self._cast = x_dtype is not None, bool(cast)
        self._remake: tuple[Any, ...] | None = None  # a function and its arguments that make a loaded model anew
        self._arguments = {
            "chain": chain,
            "in_features": in_features,
            "out_features": out_features,
            "dtype": arrays.dtype_name(DType(config.weight_dtype)),
            "x_dtype": arrays.dtype_name(DType(config.x_dtype)) if self._x_fixed else None,
            "y_dtype": None if y_dtype is None else arrays.dtype_name(DType(config.y_dtype)),
            "math": math,
            "simplify": simplify,
            "device": device,
            "threads": threads,
            "backend": backend,
            "batch_invariant": batch_invariant,
            "cast": cast,
            "first_column": first_column,
            "total_columns": total_columns,
        }
        self._handle: Handle | None = None
        self._open_config: _lib.Config | None = None  # of a model whose sizes are the weight's to say
        self._unsettled = [True]  # until a load has said them
        if config.in_features and (config.out_features or empty) or arguments.says_sizes(chain):
            self._adopt(Handle(load(), config))
        else:
            self._adopt(self._trial(config))
            self._handle, self._open_config = None, config

    def _adopt(self, handle: Handle) -> None:
        """Takes a model of the library as this one's, once what calls ask for is noted."""
        info = handle.info()
        self._x_tail, self._y_tail = (info.in_features,), (info.output_features,)
        self._inputs = Inputs(info, self._x_fixed, self._cast)
        self._outputs = Outputs(info)
        self._plain = len(info.results) == 1 and not info.row_inputs
        for name in {"self", "x", "out", "keepdims", "rows"} & info.row_inputs.keys():
            raise InvalidArgumentError(f"the chain has a row input #{name}, which is an argument of a call already")
        self._x_numpy = arrays.numpy_dtype(self._inputs.x_dtype)
        self._y_numpy = arrays.numpy_dtype(DType[info.y_dtype.upper()])
        self._forward = handle.library.rf_model_forward
        self._calls: TensorCalls | None = None
        self._handle = handle

    @staticmethod
    def _trial(config: _lib.Config) -> Handle:
        """A model, of columns enough for any topk, which says now whatever is wrong with a config that lacks sizes."""
        given = config.in_features, config.out_features, config.first_column, config.total_columns
        config.in_features, config.out_features = given[0] or 1, given[1] or _lib.MAX_TOP
        config.first_column = config.total_columns = 0
        try:
            return Handle(load(), config)
        finally:
            config.in_features, config.out_features, config.first_column, config.total_columns = given

    @classmethod
    def preset(cls, name: str, in_features: int, out_features: int, **keywords: Any) -> Model:
        """One of ``rowfold.presets()`` by name, with the keywords of Model."""
        return cls(f"preset:{name}", in_features, out_features, **keywords)

    def load_weights(
        self,
        weight: Any,
        bias: Any = None,
        vectors: Mapping[str, Any] | None = None,
        *,
        borrow: bool = False,
        keep: bool = False,
    ) -> Model:
        """Loads the weights, once, and returns the model.

        Parameters
        ----------
        weight
            (out_features, in_features) of the model's dtype, as torch.nn.Linear stores it. Any layout; a transposed one
            is copied first.
        bias
            (out_features,), or None for none. Any dtype that goes with the model's.
        vectors
            The per-feature vectors that the chain names, each (out_features,).
        borrow
            The library may read ``weight`` where it is instead of copying it: leave it unchanged as long as the model
            lives. Saves the memory of a copy, which a Hopper GPU reads faster.
        keep
            The model keeps copies of the arrays, so that it can be pickled and copied. Takes their size in memory.

        Raises
        ------
        AlreadyLoadedError, InvalidArgumentError for shapes and for vectors that are missing or superfluous,
        ArgumentTypeError for dtypes, OutOfMemoryError, DeviceError. After an error the model can still be loaded.

        """
        weight, bias, named_arrays = self._inputs.own(weight, bias, arguments.mapping(vectors, "vectors"), keep)
        sized = self._sized_by(weight)
        handle = self._open() if sized is None else sized
        inputs = self._inputs if sized is None else Inputs(sized.info(), self._x_fixed, self._cast)
        flags = _lib.BORROW if borrow or keep else 0
        with inputs.native_weights(weight, bias, named_arrays, flags) as (weights, owner):
            handle.library.rf_model_load_weights_ex(handle.pointer, ctypes.byref(weights))
        if sized is not None:
            self._settle(sized)
        if borrow or keep:
            handle.lend(owner)
        self._remake = (_made_of_arrays, type(self), self._arguments, weight, bias, named_arrays) if keep else None
        return self

    def update_weights(
        self,
        weight: Any,
        bias: Any = None,
        vectors: Mapping[str, Any] | None = None,
        *,
        borrow: bool = False,
        keep: bool = False,
        keep_form: bool = False,
    ) -> Model:
        """Puts other numbers in the place of the loaded weights, and returns the model.

            model.update_weights(W, b)        # after a step of an optimizer

        Nothing is planned anew, and results have the bits of a new model with these weights. Arrays on a GPU are read
        on their framework's current stream: calls on that stream before the update see the old numbers, calls after it
        the new ones. No other thread may use the model meanwhile.

        Parameters
        ----------
        weight, bias, vectors
            As for ``load_weights``, all of them: those that did not change, too.
        borrow, keep
            As for ``load_weights``, and of these arrays: without ``keep`` the model can no longer be pickled or copied.
        keep_form
            For arrays on a GPU. Without it the update looks at W's values, which decide how products of float32 and of
            mixed types are computed, and waits for that once. With it nothing waits, the update can be captured in a
            CUDA graph, and graphs captured before stay valid; the values must be of the kind of those loaded.

        Raises
        ------
        NotLoadedError, and what ``load_weights`` raises. After an OutOfMemoryError or DeviceError the numbers are the
        old ones, the new ones or some of both.

        """
        handle = self._open()
        weight, bias, named_arrays = self._inputs.own(weight, bias, arguments.mapping(vectors, "vectors"), keep)
        flags = (_lib.BORROW if borrow or keep else 0) | (_lib.KEEP_FORM if keep_form else 0)
        with self._inputs.native_weights(weight, bias, named_arrays, flags) as (weights, owner):
            self._calls = self._remake = None  # what a call needs may have changed with W's form
            handle.library.rf_model_update_weights(handle.pointer, ctypes.byref(weights))
        handle.lend(owner if borrow or keep else None)
        self._remake = (_made_of_arrays, type(self), self._arguments, weight, bias, named_arrays) if keep else None
        return self

    def _sized_by(self, weight: Any) -> Handle | None:
        """A model of the library with the weight's sizes, to be loaded, where those of this one are open."""
        given, shape = self._open_config, tuple(getattr(weight, "shape", ()))
        if given is None:
            return None
        if len(shape) != 2:
            what = (
                f"has shape {arrays.shape_text(shape)}" if hasattr(weight, "shape") else f"is a {type(weight).__name__}"
            )
            raise InvalidArgumentError(f"weight {what}; expected (out_features, in_features)")
        # Of its own: another thread may be loading, too. What it points to belongs to the one given.
        config = _lib.Config.from_buffer_copy(given)
        if not config.in_features:
            config.in_features = arguments.open_size(shape[1], shape, "weight")
        if not config.out_features:
            shard = config.total_columns != 0  # which may have no columns
            config.out_features = int(shape[0]) if shard else arguments.open_size(shape[0], shape, "weight")
        return Handle(load(), config)

    def _settle(self, loaded: Handle) -> None:
        """Takes a model of the library that was loaded as this one's, whose sizes were open.

        Of threads that load at once the first to be done has loaded. Without a lock, which a child of fork could
        find taken.
        """
        try:
            self._unsettled.pop()
        except IndexError:
            raise AlreadyLoadedError("another thread has loaded the model's weights") from None
        self._adopt(loaded)
        if self._open_config is None:  # closed in the meantime
            self._handle = None
        self._open_config = None

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        chain: str | Chain | Op | Operator | Iterable[Op | Operator],
        *,
        weight: str,
        bias: str | None = files.BESIDE,
        vectors: Mapping[str, str] | None = None,
        **keywords: Any,
    ) -> Model:
        """A loaded model, its weights from a safetensors file, the JSON index of a sharded one, or an .npz.

        Parameters
        ----------
        path
            The file. It is mapped, validated in full, and closed again; of an .npz only the arrays named are read.
        chain
            As for Model. Sizes it does not say are those of the tensor ``weight``; of a shard ``out_features`` is to be
            given.
        weight, bias
            Names of the tensors, (out_features, in_features) and (out_features,). Of a shard they have
            ``total_columns`` rows, of which only the model's own are read. By default the bias is the ``.bias`` beside
            a ``.weight``, if there is one, as PyTorch keeps them; None for no bias.
        vectors
            For each per-feature vector of the chain the name of its tensor, (out_features,).
        keywords
            Those of Model. ``dtype`` is the tensor's.

        Raises
        ------
        FileError (OSError), InvalidFileError (ValueError), and what Model and load_weights raise.

        """
        chain, named = arguments.as_chain(chain), arguments.mapping(vectors, "vectors")
        place = os.path.abspath(arguments.path_text(path))
        again = (_made_of_file, cls, place, chain, weight, bias, dict(named), dict(keywords))
        for argument, name in (("weight", weight), ("bias", bias), *(("vectors", name) for name in named.values())):
            if name is not None:
                encode(name, argument)
        if npz.is_npz(path):
            bias = files.bias_of(bias, weight, partial(npz.shape, path))
            wanted = [weight, *([] if bias is None else [bias]), *named.values()]
            state = npz.arrays(path, wanted)
            if keywords.get("total_columns") is not None:
                first = arguments.integer(keywords.get("first_column", 0), "first_column", 64)
                count = arguments.integer(keywords.get("out_features") or 0, "out_features", 64)
                state = {
                    name: npz.rows_of(path, name, array, keywords["total_columns"])[first : first + count]
                    for name, array in state.items()
                }
            model = cls.from_state_dict(state, chain, weight=weight, bias=bias, vectors=named, **keywords)
            model._remake = again
            return model
        with files.opened(path) as file:
            tensor = files.find_in(file, weight)
            bias = files.bias_of(bias, weight, partial(files.shape_in, file))
            if len(tensor.shape) != 2:
                shape = arrays.shape_text(tensor.shape)
                raise InvalidArgumentError(
                    f"{tensor.path}: tensor {weight!r} has shape {shape}; expected (out_features, in_features)"
                )
            arguments.say_sizes(keywords, chain, tensor.shape, f"{tensor.path}: tensor {weight!r}")
            if tensor.dtype is not None:
                keywords.setdefault("dtype", arrays.dtype_name(tensor.dtype))
            names = files.native_names(weight, bias, named)
            model = cls(chain, **keywords)
            handle = model._open()
            handle.library.rf_model_load_open_file(handle.pointer, file, ctypes.byref(names))
        model._remake = again
        return model

    @classmethod
    def from_state_dict(
        cls,
        state_dict: Mapping[str, Any],
        chain: str | Chain | Op | Operator | Iterable[Op | Operator],
        *,
        weight: str,
        bias: str | None = files.BESIDE,
        vectors: Mapping[str, str] | None = None,
        borrow: bool = False,
        keep: bool = False,
        **keywords: Any,
    ) -> Model:
        """A loaded model, its weights from a mapping of names to arrays.

        >>> state = {"head.weight": np.ones((1000, 64), np.float32), "head.bias": np.zeros(1000, np.float32)}
        >>> rowfold.Model.from_state_dict(state, "linear | max", weight="head.weight").info.chain  # and head.bias
        'linear | max'

        Parameters
        ----------
        state_dict
            A PyTorch module's ``state_dict()``, or any mapping to arrays that ``load_weights`` takes. Other entries
            are not looked at.
        chain
            As for Model. Sizes it does not say are those of the array ``weight``.
        weight, bias
            Names of the arrays, (out_features, in_features) and (out_features,). By default the bias is the ``.bias``
            beside a ``.weight``, if there is one, as PyTorch keeps them; None for no bias.
        vectors
            For each per-feature vector of the chain the name of its array, (out_features,).
        borrow, keep
            As for ``load_weights``.
        keywords
            Those of Model. ``dtype`` is the array's, unless it holds bfloat16 as uint16.

        Raises
        ------
        InvalidArgumentError for a name that is not there, and what Model and load_weights raise.

        """
        chain, state_dict = arguments.as_chain(chain), arguments.mapping(state_dict, "state_dict")
        matrix = arguments.entry(state_dict, weight, "weight")
        shape = tuple(getattr(matrix, "shape", ()))
        if hasattr(matrix, "shape") and len(shape) != 2:
            raise InvalidArgumentError(
                f"{weight!r} has shape {arrays.shape_text(shape)}; expected (out_features, in_features)"
            )
        arguments.say_sizes(keywords, chain, shape, repr(weight))
        if hasattr(matrix, "dtype") and "dtype" not in keywords:
            keywords["dtype"] = arrays.dtype_name(arrays.parse_dtype(matrix.dtype, f"the dtype of {weight!r}"))
        bias = files.bias_of(bias, weight, lambda name: getattr(state_dict.get(name), "shape", None))
        row = None if bias is None else arguments.entry(state_dict, bias, "bias")
        named = {
            name: arguments.entry(state_dict, key, f"vector {name!r}")
            for name, key in arguments.mapping(vectors, "vectors").items()
        }
        return cls(chain, **keywords).load_weights(matrix, row, named, borrow=borrow, keep=keep)

    def __call__(self, x: Any, out: Any = None, *, keepdims: bool = True, rows: Any = None, **row_inputs: Any) -> Any:
        """The chain applied to each row of x.

        x is an array of numpy, torch, cupy or jax, or anything with DLPack, __cuda_array_interface__ or the buffer
        protocol. The result is of the same kind, on the same device. Device arrays are used where they are, on their
        framework's current stream, and the call returns before the work is done.

        Parameters
        ----------
        x
            (..., in_features), at least one dimension. Never written; copied only if its rows are not of unit stride
            and evenly spaced. On the host, or on the model's device. A tensor that requires grad is refused while grad
            mode is on.
        out
            Where to put the result: of x's kind and the result's shape and dtype, writable, not overlapping x. The one
            column of a reduction may be no dimension of it. By default a new array. Of several results a sequence of
            such arrays, in their order; of topk a pair.
        keepdims
            False drops the one column of a reduction, as numpy's reductions do: (...,). Those of topk and gather stay.
        rows
            Which rows of x are wanted: numbers of rows, x seen as a matrix, in any order and any number of times; or
            a boolean for each row. Results are then of these alone, (rows, 1), as if x and the row inputs had been
            indexed with them first; the others cost nothing. On the host, or a torch tensor on the device as x and all
            row inputs: a row that x does not have is then one of NaN.
        row_inputs
            The values that the chain names with #, each of the leading dimensions of x: ``model(x, target=ids)``.
            Columns are int64 or int32; numbers have a dtype that goes with the model's, or are one Python number for
            all rows. Those of gather have one dimension more, (..., k). On the host or on the device as x.

        Returns
        -------
        (..., 1), or (...,) without keepdims, or (..., out_features) for a chain without a reduction; ``out`` if it was
        given. Of gather (..., k), and of topk a TopK of (..., k) values and their columns. Of several results a named
        tuple of these; columns are int64.

        Raises
        ------
        NotLoadedError, ClosedError, InvalidArgumentError for shapes and layouts, ArgumentTypeError for dtypes,
        OutOfMemoryError, DeviceError. After an error before the computation ``out`` is untouched.

        """
        handle = self._open()
        if not keepdims and not any(map(self._outputs.has_one_column, self._outputs.places)):
            raise InvalidArgumentError(
                f"keepdims is {keepdims!r}, but the result has {self._y_tail[0]} columns; it drops the one column of a "
                "reduction"
            )
        # What numpy users call with most goes by the shortest way: no strides but those of a matrix's rows.
        if (
            self._plain
            and not row_inputs
            and rows is None
            and type(x) is np.ndarray
            and x.dtype == self._x_numpy
            and (x.shape[-1:] == self._x_tail)
        ):
            flags = x.flags
            ld = 0 if flags.c_contiguous else self._rows_apart(x)
            if ld is not None and flags.aligned:
                lead = x.shape[:-1]
                y = arrays.new_array(lead + self._y_tail, self._y_numpy) if out is None else out
                if out is None or self._is_plain_output(out, x):
                    if ld:
                        size = ctypes.sizeof(_lib.ForwardArgs)
                        args = _lib.ForwardArgs(size, x.ctypes.data, y.ctypes.data, prod(lead), ld)
                        handle.library.rf_model_forward_ex(handle.pointer, ctypes.byref(args))
                    else:
                        self._forward(handle.pointer, x.ctypes.data, prod(lead), y.ctypes.data)
                    return y if keepdims or out is not None else y[..., 0]
        calls = self._calls
        if calls is not None and not row_inputs and rows is None:
            y = calls.run(x, out, keepdims)
            if y is not None:
                return y
        made = self._call(handle, x, out, row_inputs, rows)
        if out is None and not keepdims:
            made = [y[..., 0] if self._outputs.has_one_column(i) else y for i, y in enumerate(made)]
        return self._outputs.together(made)

    @property
    def states_info(self) -> StatesInfo:
        """What ``states`` gives. Raises UnsupportedError as that does."""
        return states_info(self._open())

    def states(self, x: Any, **row_inputs: Any) -> States:
        """The partial states of the model's columns, for ``merge_states``: what a shard computes instead of results.

        Parameters
        ----------
        x
            As in a call of the model.
        row_inputs
            As in a call. Columns count in the whole layer: one that another shard has is no error.

        Returns
        -------
        States, with data of shape (..., groups, words) and of x's kind: at most 16 groups, 2 or 3 words for each
        reduction.

        Raises
        ------
        What a call raises, and UnsupportedError for a chain without a reduction, and for rank, topk and gather.

        """
        handle = self._open()
        info = states_info(handle)
        kind, given = self._inputs.matrix(x)
        values = self._inputs.row_values(given, row_inputs)
        data, matrix = kind.empty(x, (*given.lead, info.num_groups, info.num_words), DType.FLOAT64)
        native = _lib.States(
            size=ctypes.sizeof(_lib.States),
            data=matrix.pointer,
            bytes=given.batch * info.num_groups * info.num_words * ctypes.sizeof(ctypes.c_double),
            memory=matrix.memory,
        )
        args = self._inputs.args(given)
        args.states = ctypes.pointer(native)
        self._inputs.give_row_values(args, values, given.batch)
        if given.memory is Memory.DEVICE:
            workspace = kind.workspace(x, lambda: handle.call_workspace(args))
            if workspace is not None:
                args.workspace, args.workspace_size, _ = workspace
        handle.library.rf_model_forward_ex(handle.pointer, ctypes.byref(args))
        return States(kind.finish(data, x), info.first_column, info.num_columns, info.total_columns, info.chain)

    def _merge(self, parts: list[States], keepdims: bool, row_inputs: dict[str, Any]) -> Any:
        """What merge_states returns."""
        handle = self._open()
        if not parts:
            raise InvalidArgumentError("parts is empty; expected the states of all columns")
        info = states_info(handle)
        words, borders = info.num_words, state_groups(info.total_columns)
        read = [part_matrix(part, f"parts[{i}]", words, borders) for i, part in enumerate(parts)]
        lead = read[0][1]
        for i, (_, other) in enumerate(read):
            if other != lead:
                raise InvalidArgumentError(
                    f"parts[{i}] is of x (..., in_features) with leading dimensions {arrays.shape_text(other)}, and "
                    f"parts[0] {arrays.shape_text(lead)}; expected the same x"
                )
        like, batch = parts[0].data, prod(lead)
        kind = kind_of(like, "parts[0].data")
        for i, (matrix, _) in enumerate(read):
            self._inputs.check_device(f"parts[{i}].data", matrix)
        given = arrays.Matrix(0, lead, batch, 0, self._inputs.x_dtype, Memory.HOST, None, None)
        values = self._inputs.row_values(given, row_inputs)
        made = [kind.empty(like, shape, dtype) for shape, dtype in self._outputs.shapes(lead, values)]
        native = (_lib.States * len(parts))(
            *(
                native_part(part, matrix, matrix.batch * words * ctypes.sizeof(ctypes.c_double))
                for part, (matrix, _) in zip(parts, read)
            )
        )
        streams = [m.stream for m, _ in (*read, *values.values()) if m.stream is not None]
        args = _lib.ForwardArgs(size=ctypes.sizeof(_lib.ForwardArgs), batch=batch, stream=next(iter(streams), None))
        self._outputs.give(args, [matrix for _, matrix in made])
        self._inputs.give_row_values(args, values, batch)
        handle.library.rf_states_merge(handle.pointer, native, len(parts), ctypes.byref(args))
        done = [kind.finish(y, like) for y, _ in made]
        if not keepdims:
            done = [y[..., 0] for y in done]
        return self._outputs.together(done)

    def _rows_apart(self, x: np.ndarray[Any, Any]) -> int | None:
        """Elements from one row of a matrix to the next, where rows of unit stride lie apart in their order."""
        item = x.itemsize
        if x.ndim != 2 or x.strides[1] != item or x.strides[0] < self._inputs.in_features * item or x.strides[0] % item:
            return None
        return x.strides[0] // item

    def _is_plain_output(self, out: Any, x: np.ndarray[Any, Any]) -> bool:
        return (
            type(out) is np.ndarray
            and out.dtype == self._y_numpy
            and out.shape == x.shape[:-1] + self._y_tail
            and out.flags.carray
            and not np.may_share_memory(x, out)
        )

    def _call(self, handle: Handle, x: Any, out: Any, row_inputs: dict[str, Any], wanted: Any) -> list[Any]:
        kind, given = self._inputs.matrix(x)
        values = self._inputs.row_values(given, row_inputs)
        listed = None if wanted is None else rows.wanted(wanted, given.lead)
        if listed is not None:
            self._inputs.check_device("rows", listed)
        lead = given.lead if listed is None else (listed.batch,)
        made, results = self._outputs.arrays(kind, x, given, out, lead, values)
        plain = self._plain and listed is None and given.memory is Memory.HOST and given.dtype is self._inputs.x_dtype
        if plain and not given.ld and not results[0].ld:
            self._forward(handle.pointer, given.pointer, given.batch, results[0].pointer)
        else:
            self._forward_ex(handle, x, kind, given, results, values, listed)
        if self._plain and listed is None and isinstance(kind, TorchKind):
            calls = self._calls
            if calls is None:
                calls = self._calls = TensorCalls(handle)
            calls.learn(x, given, results[0])
        if out is None:
            made = [kind.finish(y, x) for y in made]
        else:
            for y in made:
                kind.written(y)
        return made

    def _forward_ex(
        self,
        handle: Handle,
        x: Any,
        kind: arrays.ArrayKind,
        given: arrays.Matrix,
        results: list[arrays.Matrix],
        values: dict[str, tuple[arrays.Matrix, int]],
        listed: arrays.Matrix | None,
    ) -> None:
        args = self._inputs.args(given)
        if self._plain:
            (y,) = results
            args.y, args.ldy, args.y_dtype, args.y_memory = y.pointer, y.ld, y.dtype, y.memory
        else:
            self._outputs.give(args, results)
            self._inputs.give_row_values(args, values, given.batch)
        if listed is not None:
            args.rows = ctypes.cast(listed.pointer, ctypes.POINTER(ctypes.c_int64))
            args.num_rows = listed.batch
            args.rows_memory = listed.memory
        workspace = None
        if given.memory is Memory.DEVICE:
            for y in results:
                self._inputs.check_device("out", y)
            workspace = kind.workspace(x, lambda: handle.call_workspace(args))
            if workspace is not None:
                args.workspace, args.workspace_size, _ = workspace
        try:
            handle.library.rf_model_forward_ex(handle.pointer, ctypes.byref(args))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(self._outputs.by_name(str(error))) from None

    @property
    def info(self) -> ModelInfo:
        """What the model is and where it runs. Raises ClosedError."""
        return self._open().info()

    def workspace_size(self, batch: int | None = None, *, x: Any = None) -> int:
        """Bytes of working memory that one call takes and frees: with ``batch`` rows of any type, or with ``x``.

        The second may be less: on a GPU it depends on x's type, and where its rows begin. Raises NotLoadedError,
        ArgumentTypeError unless it is one of both, and what a call with ``x`` raises.
        """
        handle = self._open()
        if (batch is None) == (x is None):
            raise ArgumentTypeError("workspace_size takes either batch or x")
        if x is not None:
            return handle.call_workspace(self._inputs.args(self._inputs.matrix(x)[1]))
        return handle.workspace_size(arguments.integer(batch, "batch", 64))

    def count_ways(self, x: Any) -> Ways:
        """Which ways the rows of ``x`` take on a GPU, by their values and W's: a diagnostic, which computes no result.

        A call takes longer where rows need terms of two levels, or cannot be represented by terms at all. Waits for
        the stream. Raises what a call with ``x`` raises.
        """
        handle = self._open()
        return handle.count_ways(self._inputs.args(self._inputs.matrix(x)[1]))

    @overload
    def explain(self, batch: int = ..., format: Literal["text"] = ...) -> str: ...

    @overload
    def explain(self, batch: int, format: Literal["json"]) -> dict[str, Any]: ...

    @overload
    def explain(self, batch: int = ..., *, format: Literal["json"]) -> dict[str, Any]: ...

    def explain(self, batch: int = 1024, format: str = "text") -> str | dict[str, Any]:
        """The plan for one batch size: what is fused, removed or replaced and why, arithmetic, memory, expected times.

        ``format`` is ``"text"`` for a str or ``"json"`` for a dict. Works before the weights are loaded.
        """
        wanted = arguments.choice(_lib.Format, format, "format")
        text = self._open().explain(arguments.integer(batch, "batch", 64), wanted)
        if wanted is _lib.Format.JSON:
            document: dict[str, Any] = json.loads(text)
            return document
        return text

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None and self._open_config is None

    def close(self) -> None:
        """Frees the model, once calls under way in other threads are done. Closing twice is fine."""
        self._handle = self._open_config = self._calls = self._remake = None

    def _open(self) -> Handle:
        handle = self._handle
        if handle is None:
            if self._open_config is not None:
                raise NotLoadedError(
                    "the model has no weights yet, and its sizes are theirs to say; call load_weights first, or give "
                    "in_features and out_features"
                )
            raise ClosedError("the model was closed; create another one")
        return handle

    def __enter__(self) -> Model:
        if self._open_config is None:
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        if self._open_config is None and self._open().info().loaded:
            if self._remake is None:
                raise ArgumentTypeError(
                    "the model cannot be pickled or copied: its weights are in memory of this process. Load or "
                    "update them with keep=True, or make it from a file with Model.from_file"
                )
            return self._remake[0], self._remake[1:]
        return _made_of_arrays, (type(self), self._arguments, None, None, {})

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.startswith("_") or name.endswith("__")]

    def __repr__(self) -> str:
        if self._open_config is not None:
            return f"<rowfold.Model {str(self._arguments['chain'])!r}, no weights yet>"
        if self._handle is None:
            return "<rowfold.Model, closed>"
        info = self.info
        state = "" if info.loaded else ", no weights yet"
        size = f"{info.in_features} -> {info.out_features}"
        return f"<rowfold.Model {info.chain!r}, {size}, {info.dtype}, {info.backend}{state}>"


def _made_of_file(
    cls: type[Model], path: str, chain: Any, weight: str, bias: str | None, vectors: Any, keywords: Any
) -> Model:
    """A copy of a model that came from a file."""
    return cls.from_file(path, chain, weight=weight, bias=bias, vectors=vectors, **keywords)


def _made_of_arrays(cls: type[Model], given: Any, weight: Any, bias: Any, vectors: Any) -> Model:
    """A copy of a model that kept its arrays, or that has none yet."""
    model = cls(**given)
    return model if weight is None else model.load_weights(weight, bias, vectors, keep=True)
