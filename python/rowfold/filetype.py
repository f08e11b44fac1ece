# SPDX-License-Identifier: MIT
"""Hints for files that are not what was expected, and for names that are not in them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence


def what_is(path: str | os.PathLike[str]) -> str:
    """What a file is that is not what was expected, with what to do, for the end of a sentence; empty if unknown."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError:
        return ""
    for mark, what in _KNOWN:
        if head.startswith(mark):
            return what
    if head.startswith(b"PK") and b"data.pkl" in head:
        return _CHECKPOINT
    if head.startswith(b"PK"):
        return "an archive of arrays, as numpy.savez writes them; weights are read from one whose name ends in .npz"
    if len(head) > 8 and head[8:9] == b"{":
        return "a safetensors file; its name must end in .safetensors, and a tensor is FILE.safetensors:TENSOR"
    if head and not head.translate(None, _PRINTABLE):
        return "text; numpy.loadtxt reads that, and numpy.save or savez writes it anew"
    return ""


_CHECKPOINT = (
    "a checkpoint of PyTorch, which only PyTorch can read; safetensors.torch.save_file(torch.load(...), PATH) "
    "converts it"
)
_KNOWN = (
    (b"\x93NUMPY", "an array of numpy, an .npy; weights have names, as numpy.savez(PATH, weight=W) gives them"),
    (b"\x80\x02", _CHECKPOINT),
    (b"\x80\x04", "a pickle of Python, which is not read: it could run anything"),
    (b"\x80\x05", "a pickle of Python, which is not read: it could run anything"),
    (b"GGUF", "a GGUF file, whose weights are mostly of types that no model takes"),
    (b"\x89HDF", "an HDF5 file; h5py reads it, and numpy.savez writes what is expected"),
    (b"\x1f\x8b", "compressed by gzip; expand it first"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd; expand it first"),
)
_PRINTABLE = bytes([9, 10, 13, *range(32, 127), *range(128, 256)])


def nearest(name: str, names: Sequence[str]) -> str:
    """A hint for a name that is not among these: the one that is most like it, or what there is."""
    like = difflib.get_close_matches(name, names, 1, 0.7)
    if like:
        return f"; did you mean {like[0]!r}?"
    return f"; there are {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}" if names else ""
