# SPDX-License-Identifier: MIT
"""Broken .npy and .npz files: whatever is wrong with them, one of rowfold's exceptions and one sentence."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import rowfold
from hypothesis import strategies as st
from rowfold import files, npz

pytestmark = pytest.mark.cpu_only
W = np.arange(12, dtype=np.float32).reshape(3, 4)


def npy(header: bytes, version: tuple[int, int] = (1, 0), data: bytes = W.tobytes()) -> bytes:
    """A file with this header, of the length that it has."""
    length = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + header + data


def described(shape: str = "(3, 4)", descr: str = "'<f4'", order: str = "False") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()


BROKEN = {
    "nothing": b"",
    "a magic alone": b"\x93NUMPY",
    "no header": b"\x93NUMPY\x01\x00",
    "another version": npy(described(), (9, 0)),
    "a header cut short": npy(described())[:40],
    "data cut short": npy(described(), data=b"\0" * 40),
    "no data": npy(described(), data=b""),
    "a header that is no dict": npy(b"[1, 2]"),
    "no Python": npy(b"{'descr': <f4}"),
    "an open string": npy(b"{'descr': '''"),
    "an open bracket": npy(b"{'descr': (((((("),
    "a wrong indent": npy(b"  {\n 'descr'\n"),
    "deep brackets": npy(b"(" * 5000),
    "a long header": npy(described() + b" " * 60000),
    "not UTF-8": npy(b"\xff\xfe{}", (3, 0)),
    "a NUL": npy(b"{'descr': '\0'}"),
    "other keys": npy(b"{'a': 1}"),
    "a negative shape": npy(described("(-3, 4)")),
    "a shape of floats": npy(described("(3.0, 4)")),
    "a shape that is none": npy(described("3")),
    "a huge shape": npy(described("(4611686018427387904, 8)")),
    "a shape beyond all numbers": npy(described("(99999999999999999999999, 4)")),
    "more memory than there is": npy(described("(1099511627776, 1024)")),
    "many dimensions": npy(described("(" + "1, " * 70 + ")")),
    "an unknown type": npy(described(descr="'<q9'")),
    "a type that is none": npy(described(descr="7")),
    "objects": npy(described(descr="'|O'")),
    "fields": npy(described(descr="[('a', '<f4'), ('a', '<f4')]")),
    "an order that is none": npy(described(order="3")),
    "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01.",
    "text": b"1 2 3\n4 5 6\n",
}


def archive(member: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as file:
        file.writestr("w.npy", member)
    return made.getvalue()


def test_an_array_that_was_cut_short_is_told_by_its_bytes(tmp_path):
    whole = npy(described())
    (tmp_path / "x.npy").write_bytes(whole[:-5])
    with pytest.raises(rowfold.InvalidFileError, match=f"has {len(whole) - 5} bytes of the {len(whole)} that its"):
        npz.mapped(tmp_path / "x.npy")


def everything(path: Path) -> None:
    """All ways to read a file of numpy; each may raise rowfold's exceptions, of one line, and nothing else."""
    ways: list[Callable[[], Any]] = [
        lambda: npz.mapped(path).tobytes(),  # not all types have sums
        lambda: npz.stream_header(io.BytesIO(path.read_bytes()), "standard input"),
    ]
    if path.suffix == ".npz":
        ways = [
            lambda: files.tensors(path),
            lambda: rowfold.Model.from_file(path, "linear | sum", weight="w").close(),
        ]
    for way in ways:
        try:
            way()
        except rowfold.Error as error:
            assert str(error) and "\n" not in str(error) and len(str(error)) < 1000
            assert "pickle.load" not in str(error)


@pytest.mark.parametrize("about", BROKEN)
def test_a_broken_array_is_one_sentence(tmp_path: Path, about: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(BROKEN[about])
    with pytest.raises(rowfold.Error) as caught:
        npz.mapped(path).sum()
    assert "x.npy: " in str(caught.value) and "pickle.load" not in str(caught.value)
    if "shape" in about:
        with pytest.raises(rowfold.Error, match="^standard input: no .npy: "):
            npz.stream_header(io.BytesIO(BROKEN[about]), "standard input")
    everything(path)
    path = tmp_path / "x.npz"
    path.write_bytes(archive(BROKEN[about]))
    with pytest.raises(rowfold.Error, match=r"x\.npz.*'w'"):
        rowfold.Model.from_file(path, "linear | sum", weight="w")
    everything(path)


GOOD = {
    "x.npy": npy(described()),
    "stored.npz": archive(npy(described()), zipfile.ZIP_STORED),
    "deflated.npz": archive(npy(described())),
    "bzip2.npz": archive(npy(described()), zipfile.ZIP_BZIP2),
    "lzma.npz": archive(npy(described()), zipfile.ZIP_LZMA),
}


@pytest.mark.parametrize("name", GOOD)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    length=st.one_of(st.none(), st.floats(0, 1)),
)
@hypothesis.example(edits=[(0.1953125, ord("S"))], length=None)  # of x.npy: a type of bytes
def test_bytes_that_changed_are_one_sentence(
    tmp_path: Path, name: str, edits: list[tuple[float, int]], length: float | None
) -> None:
    data = bytearray(GOOD[name])
    for place, value in edits:
        data[int(place * len(data))] = value
    (tmp_path / name).write_bytes(data if length is None else data[: int(length * len(data))])
    everything(tmp_path / name)


def test_each_byte_that_changes_is_one_sentence(tmp_path: Path) -> None:
    """Every byte in its turn, as three others."""
    for name, good in GOOD.items():
        for place in range(len(good)):
            for value in (0, good[place] ^ 1, 255):
                (tmp_path / name).write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
                everything(tmp_path / name)


def test_good_files_are_read(tmp_path: Path) -> None:
    for name, good in GOOD.items():
        (tmp_path / name).write_bytes(good)
        if name == "x.npy":
            np.testing.assert_array_equal(npz.mapped(tmp_path / name), W)
        else:
            with rowfold.Model.from_file(tmp_path / name, "linear | sum", weight="w") as model:
                assert model(np.ones((1, 4), np.float32)) == W.sum()
