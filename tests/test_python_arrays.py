# SPDX-License-Identifier: MIT
"""Strides of numpy arrays as one leading dimension, against a search by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rowfold
from hypothesis import given, settings
from hypothesis import strategies as st
from rowfold import _lib, arrays

PACKAGE = Path(rowfold.__file__).resolve().parent


@st.composite
def views(draw):
    """Views of a small array: steps, permuted axes, broadcasts, axes of length 0 and 1."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    array = array.transpose(draw(st.permutations(range(len(shape)))))
    slices = []
    for _ in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 1, 2, -1]))
        slices.append(slice(None, None, step))
    array = array[tuple(slices)]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(1, 3)), *array.shape))
    return array


def offsets(array):
    """Offset in bytes of each element from the first, rows of the last dimension in order."""
    grid = np.indices(array.shape).reshape(array.ndim, -1)
    return (np.array(array.strides)[:, None] * grid).sum(axis=0).reshape(-1, array.shape[-1])


@settings(deadline=None, max_examples=400)
@given(views())
def test_row_stride_addresses_every_element_or_says_it_cannot(array):
    ld = arrays.row_stride(array.shape, array.strides, array.itemsize)
    width = array.shape[-1]
    if array.size == 0:
        assert ld == 0
        return
    rows = offsets(array)
    columns = np.arange(width) * array.itemsize
    steps = set(np.diff(rows[:, 0]).tolist())
    describable = (rows == rows[:, :1] + columns).all() and (
        not steps or (len(steps) == 1 and min(steps) >= width * array.itemsize)
    )
    assert (ld is not None) == describable
    if ld is not None and len(rows) > 1:
        np.testing.assert_array_equal(rows, np.arange(len(rows))[:, None] * ld * array.itemsize + columns)


@settings(deadline=None, max_examples=100)
@given(views())
def test_a_matrix_holds_the_values_of_the_array(array):
    before = array.copy()
    matrix = arrays.NUMPY.matrix(array, "x", array.shape[-1], _lib.DType.FLOAT32)
    assert matrix.lead == array.shape[:-1]
    assert matrix.batch == int(np.prod(array.shape[:-1]))
    if array.size:
        strides = (matrix.ld * 4, 4)
        seen = np.lib.stride_tricks.as_strided(matrix.owner.reshape(-1)[:1], (matrix.batch, array.shape[-1]), strides)
        if matrix.owner.ctypes.data == matrix.pointer and matrix.owner.flags.c_contiguous:
            np.testing.assert_array_equal(seen, before.reshape(matrix.batch, -1))
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_dtype_names_round_trip(name):
    dtype = arrays.parse_dtype(name, "dtype")
    assert arrays.dtype_name(dtype) == name
    assert arrays.parse_dtype(arrays.numpy_dtype(_lib.DType.FLOAT16), "dtype") is _lib.DType.FLOAT16


def test_dtypes_of_other_frameworks_are_read_by_name():
    class Foreign:
        def __str__(self):
            return "torch.bfloat16"

    assert arrays.parse_dtype(Foreign(), "dtype") is _lib.DType.BFLOAT16


@pytest.mark.parametrize("value", ["default", "FLOAT32", "float8", None, 3, np.int32, ">f4"])
def test_other_dtypes_are_refused(value):
    with pytest.raises(TypeError, match="dtype is .*; expected one of float32, float64, float16, bfloat16"):
        arrays.parse_dtype(value, "dtype")


def run(code, **environment):
    environment["PYTHONPATH"] = str(PACKAGE.parent)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


PRINT_ERROR = """
import rowfold
try:
    rowfold.backends()
except OSError as error:
    print(type(error).__name__, error)
"""


def test_importing_the_package_loads_no_library():
    done = run("import rowfold, rowfold.ops", ROWFOLD_LIBRARY="/nowhere/librowfold.so")
    assert done.returncode == 0, done.stderr


def test_a_library_that_cannot_be_loaded_is_named():
    done = run(PRINT_ERROR, ROWFOLD_LIBRARY="/nowhere/librowfold.so")
    assert done.stdout.startswith("LibraryError"), done.stderr
    assert "/nowhere/librowfold.so" in done.stdout
    assert "ROWFOLD_LIBRARY" in done.stdout


def test_a_library_of_another_version_is_refused():
    done = run(PRINT_ERROR, ROWFOLD_LIBRARY="libm.so.6")
    if "was not found" in done.stdout:
        pytest.skip("no libm.so.6 here")
    assert "has no rf_" in done.stdout, done.stderr


def test_the_version_is_the_library_s():
    assert rowfold.__version__ == _lib.load().rf_version().decode()
