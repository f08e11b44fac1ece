# SPDX-License-Identifier: MIT
"""Model.from_file and rowfold.files on safetensors files written byte by byte."""

from __future__ import annotations

import json

import numpy as np
import pytest
import rowfold
from rowfold import files

K, N = 6, 4
CODES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64"}


def write(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": CODES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.fixture
def tensors():
    rng = np.random.default_rng(7)
    return {
        "head.weight": rng.standard_normal((N, K), dtype=np.float32),
        "head.bias": rng.standard_normal(N, dtype=np.float32),
        "scale": rng.standard_normal(N, dtype=np.float32),
        "ids": np.arange(3),
    }


@pytest.mark.parametrize("source", ["model.safetensors", "model.npz", "mapping"])
def test_the_bias_beside_the_weight(tmp_path, tensors, source):
    def made(given, **keywords):
        if source == "mapping":
            return rowfold.Model.from_state_dict(given, "linear | max", **keywords)
        np.savez(tmp_path / source, **given) if source.endswith("npz") else write(tmp_path / source, given)
        return rowfold.Model.from_file(tmp_path / source, "linear | max", **keywords)

    x = np.random.default_rng(8).standard_normal((5, K)).astype(np.float32)
    with (
        made(tensors, weight="head.weight", bias="head.bias") as named,
        made(tensors, weight="head.weight") as beside,
        made(tensors, weight="head.weight", bias=None) as none,
    ):
        right = none(x)
        np.testing.assert_array_equal(beside(x), named(x))
        assert not np.array_equal(beside(x), right)
    without = {name: array for name, array in tensors.items() if name != "head.bias"}
    short = {**without, "head.bias": np.ones(N - 1, np.float32)}
    other = {"w": tensors["head.weight"], "bias": tensors["head.bias"]}
    for given, weight in ((without, "head.weight"), (short, "head.weight"), (other, "w")):
        with made(given, weight=weight) as model:
            np.testing.assert_array_equal(model(x), right)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_model_from_a_file_is_the_model_from_arrays(tmp_path, tensors, dtype):
    tensors = {name: array.astype(dtype) if array.dtype.kind == "f" else array for name, array in tensors.items()}
    path = write(tmp_path / "model.safetensors", tensors)
    chain = "linear | mul(@s) | logsumexp"
    x = np.random.default_rng(8).standard_normal((5, K)).astype(dtype)
    with (
        rowfold.Model.from_file(
            path, chain, weight="head.weight", bias="head.bias", vectors={"s": "scale"}, simplify="none"
        ) as read,
        rowfold.Model(chain, K, N, dtype=dtype, simplify="none") as given,
    ):
        given.load_weights(tensors["head.weight"], tensors["head.bias"], {"s": tensors["scale"]})
        assert read.info == given.info
        np.testing.assert_array_equal(read(x), given(x))


def test_the_tensors_of_a_file(tmp_path, tensors):
    path = write(tmp_path / "model.safetensors", tensors)
    found = files.tensors(path)
    assert {tensor.name for tensor in found} == set(tensors)
    for tensor in found:
        assert tensor.shape == tensors[tensor.name].shape
        assert tensor.type_name == CODES[tensors[tensor.name].dtype.name]
        assert (tensor.dtype is None) == (tensor.name == "ids")
        assert tensor.path == str(path)
    assert files.find(path, "scale") in found


def test_errors_name_the_file_and_the_tensor(tmp_path, tensors):
    path = write(tmp_path / "model.safetensors", tensors)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(path.read_bytes()[:-1])
    chain = "linear | sum"
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"weight_map": {"head.weight": "none.safetensors"}}))
    cases = [
        (index, {"weight": "head.weight"}, OSError, "none.safetensors: cannot be opened"),
        (tmp_path / "none.safetensors", {"weight": "head.weight"}, OSError, "none.safetensors"),
        (broken, {"weight": "head.weight"}, ValueError, "broken.safetensors"),
        (path, {"weight": "head"}, ValueError, "head"),
        (path, {"weight": "head.weight\0"}, ValueError, "NUL"),
        (f"{path}\0", {"weight": "head.weight"}, ValueError, "NUL"),
        (path, {"weight": "head.weight", "bias": 3}, TypeError, "bias is a int; expected a str"),
        (path, {"weight": 3}, TypeError, "weight is a int; expected a str"),
        (path, {"weight": "head.weight", "vectors": ["scale"]}, TypeError, "vectors is a list; expected a mapping"),
        (3, {"weight": "head.weight"}, TypeError, "path is a int; expected a str, bytes or os.PathLike"),
        (b"none.safetensors", {"weight": "head.weight"}, OSError, "none.safetensors: cannot be opened"),
        (b"none.npz", {"weight": "head.weight"}, OSError, "none.npz: No such file"),
        ("none.npz", {"weight": 3}, TypeError, "weight is a int; expected a str"),
        (tmp_path, {"weight": "head.weight"}, OSError, "not a regular file"),
        (path, {"weight": "ids"}, ValueError, "ids"),
        (path, {"weight": "head.weight", "bias": "ids"}, ValueError, "ids"),
        (path, {"weight": "head.weight", "dtype": "float64"}, ValueError, "head.weight"),
        (path, {"weight": "head.weight", "in_features": K + 1}, ValueError, "head.weight"),
        (path, {"weight": "head.weight", "vectors": {"s": "scale"}}, ValueError, "s"),
    ]
    for file, keywords, error, message in cases:
        with pytest.raises(error) as caught:
            rowfold.Model.from_file(file, chain, **keywords)
        assert isinstance(caught.value, rowfold.Error), caught.value
        assert message in str(caught.value)


def test_a_sharded_model_is_the_model_of_one_file(tmp_path, tensors):
    whole = write(tmp_path / "model.safetensors", tensors)
    shards = {"head.weight": "1.safetensors", "head.bias": "2.safetensors", "scale": "2.safetensors"}
    for shard in set(shards.values()):
        write(tmp_path / shard, {name: tensors[name] for name, where in shards.items() if where == shard})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    names = {"weight": "head.weight", "bias": "head.bias", "vectors": {"s": "scale"}}
    x = np.random.default_rng(9).standard_normal((5, K), dtype=np.float32)
    with (
        rowfold.Model.from_file(whole, "linear | mul(@s) | max", **names) as one,
        rowfold.Model.from_file(index, "linear | mul(@s) | max", **names) as several,
    ):
        np.testing.assert_array_equal(one(x), several(x))
    for tensor in files.tensors(index):
        np.testing.assert_array_equal(files.mapped(index, tensor.name)[0], tensors[tensor.name])


def test_what_cannot_be_mapped_says_so(tmp_path, tensors):
    path = write(tmp_path / "model.safetensors", {**tensors, "empty": np.empty((0, 3), np.float32)})
    with pytest.raises(rowfold.ArgumentTypeError, match="'ids' is I64"):
        files.mapped(path, "ids")
    with pytest.raises(rowfold.InvalidArgumentError, match=r"'empty' has shape \(0, 3\)"):
        files.mapped(path, "empty")


def test_a_file_is_opened_once(tmp_path, tensors, monkeypatch):
    path = write(tmp_path / "model.safetensors", tensors)
    library, opened = files.load(), []
    rf_file_open = library.rf_file_open
    monkeypatch.setattr(library, "rf_file_open", lambda *args: opened.append(args) or rf_file_open(*args))
    monkeypatch.delattr(library, "rf_model_load_file")
    rowfold.Model.from_file(path, "linear | max", weight="head.weight", bias="head.bias").close()
    assert len(opened) == 1
