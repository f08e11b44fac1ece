# SPDX-License-Identifier: MIT
"""Weights from .npz files, state_dicts and files of the safetensors package: each the same model as from arrays."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
import rowfold
from rowfold import files

K, N = 6, 4
CHAIN = "linear | mul(@s) | logsumexp"
NAMES = {"weight": "head.weight", "bias": "head.bias", "vectors": {"s": "scale"}}
X = np.random.default_rng(8).standard_normal((5, K)).astype(np.float32)


def state(dtype="float32"):
    rng = np.random.default_rng(7)
    drawn = {"head.weight": (N, K), "head.bias": (N,), "scale": (N,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in drawn.items()} | {"ids": np.arange(3)}


def expected(arrays, dtype, x=X):
    with rowfold.Model(CHAIN, K, N, dtype=dtype) as model:
        model.load_weights(arrays["head.weight"], arrays["head.bias"], {"s": arrays["scale"]})
        return model(x)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_npz(tmp_path, save, dtype):
    arrays, x = state(dtype), X.astype(dtype)
    save(tmp_path / "w.npz", **arrays)
    with rowfold.Model.from_file(tmp_path / "w.npz", CHAIN, **NAMES) as model:
        assert (model.info.in_features, model.info.out_features, model.info.dtype) == (K, N, dtype)
        np.testing.assert_array_equal(model(x), expected(arrays, dtype, x))


def test_npz_in_fortran_order(tmp_path):
    arrays = state()
    np.savez(tmp_path / "w.npz", **{name: np.asfortranarray(array) for name, array in arrays.items()})
    with rowfold.Model.from_file(tmp_path / "w.npz", CHAIN, **NAMES) as model:
        np.testing.assert_array_equal(model(X), expected(arrays, "float32"))


def test_npz_with_bfloat16(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = state(ml_dtypes.bfloat16)
    np.savez(tmp_path / "w.npz", **arrays)
    with rowfold.Model.from_file(tmp_path / "w.npz", CHAIN, **NAMES, dtype="bfloat16") as model:
        np.testing.assert_array_equal(model(X), expected(arrays, "bfloat16"))


def test_the_arrays_of_an_npz(tmp_path):
    np.savez(tmp_path / "w.npz", **state())
    found = {tensor.name: tensor for tensor in files.tensors(tmp_path / "w.npz")}
    assert {name: tensor.shape for name, tensor in found.items()} == {n: a.shape for n, a in state().items()}
    assert found["head.weight"].dtype.name == "FLOAT32"
    assert found["ids"].dtype is None


def broken_archives(tmp_path):
    whole = tmp_path / "whole.npz"
    np.savez(whole, **state())
    raw = bytearray(whole.read_bytes())
    cut, spoilt, text = tmp_path / "cut.npz", tmp_path / "spoilt.npz", tmp_path / "text.npz"
    cut.write_bytes(raw[: len(raw) // 2])
    start = raw.find(b"\x93NUMPY")
    raw[start + 200] ^= 0xFF  # inside the data of the first array: its checksum tells
    spoilt.write_bytes(raw)
    text.write_text("no archive")
    header = tmp_path / "header.npz"
    with zipfile.ZipFile(header, "w") as archive:
        archive.writestr("head.weight.npy", b"\x93NUMPY\x01\x00\x08\x00nonsense")
    objects = tmp_path / "objects.npz"
    np.savez(objects, **{"head.weight": np.array([None, {}], object)})
    return [cut, spoilt, text, header, objects]


def test_errors_of_npz_name_the_file(tmp_path):
    for path in broken_archives(tmp_path):
        with pytest.raises(rowfold.InvalidFileError, match=path.name):
            rowfold.Model.from_file(path, "linear | sum", weight="head.weight")
    with pytest.raises(rowfold.FileError, match=r"none\.npz: No such file"):
        rowfold.Model.from_file(tmp_path / "none.npz", "linear | sum", weight="head.weight")
    with pytest.raises(rowfold.InvalidArgumentError, match="whole.npz: there is no array 'tail' among its 4"):
        rowfold.Model.from_file(tmp_path / "whole.npz", "linear | sum", weight="tail")
    np.savez(tmp_path / "whole.npz", ids=np.arange(6).reshape(2, 3))
    with pytest.raises(rowfold.ArgumentTypeError, match=r"'ids' is dtype\('int64'\)"):
        rowfold.Model.from_file(tmp_path / "whole.npz", "linear | sum", weight="ids")


def test_a_mapping_of_arrays():
    arrays = state()
    with rowfold.Model.from_state_dict(arrays, CHAIN, **NAMES, simplify="none", borrow=True) as model:
        assert model.info.simplify == "none"
        np.testing.assert_array_equal(model(X), expected(arrays, "float32"))


def test_a_mapping_without_the_name():
    for keywords, argument in [
        ({"weight": "tail"}, "weight is 'tail'"),
        ({"weight": "head.weight", "bias": "tail"}, "bias is 'tail'"),
        ({"weight": "head.weight", "vectors": {"s": "tail"}}, "vector 's' is 'tail'"),
    ]:
        with pytest.raises(rowfold.InvalidArgumentError, match=f"{argument}, which is not among the 4"):
            rowfold.Model.from_state_dict(state(), CHAIN, **keywords)
    with pytest.raises(rowfold.InvalidArgumentError, match=r"is 'haed.weight', .*; did you mean 'head.weight'\?$"):
        rowfold.Model.from_state_dict(state(), CHAIN, weight="haed.weight")
    with pytest.raises(rowfold.InvalidArgumentError, match=r"is 'tail', .*; there are head.weight, .*head.bias"):
        rowfold.Model.from_state_dict(state(), CHAIN, weight="tail")
    with pytest.raises(rowfold.InvalidArgumentError, match=r"'head.bias' has shape \(4,\); expected"):
        rowfold.Model.from_state_dict(state(), CHAIN, weight="head.bias")
    with pytest.raises(rowfold.ArgumentTypeError, match="state_dict is a int; expected a mapping"):
        rowfold.Model.from_state_dict(3, "linear(1, 1)", weight="w")
    with pytest.raises(rowfold.ArgumentTypeError, match="weight is a list"):
        rowfold.Model.from_state_dict({"w": [[1.0]]}, "linear(1, 1)", weight="w")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_torch_state_dict(dtype):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(K, N)).to(getattr(torch, dtype))
    x = torch.from_numpy(X).to(getattr(torch, dtype))
    names = {"weight": "0.weight", "bias": "0.bias"}
    with (
        rowfold.Model.from_state_dict(module.state_dict(), "linear | logsumexp", **names) as model,
        torch.no_grad(),
    ):
        exact = torch.logsumexp(module.double()(x.double()), 1, keepdim=True)
        # Logits below 8 in size, K + N + 2 roundings of the result's type at most.
        roundoff = 2.0**-53 if dtype == "float64" else 2.0**-24
        assert (model(x).double() - exact).abs().max() <= 8 * (K + N + 2) * roundoff


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_file_of_the_safetensors_package(tmp_path, dtype):
    numpy = pytest.importorskip("safetensors.numpy")
    arrays, x = state(dtype), X.astype(dtype)
    path = tmp_path / "w.safetensors"
    numpy.save_file(arrays, path, metadata={"format": "np"})
    with rowfold.Model.from_file(path, CHAIN, **NAMES) as model:
        np.testing.assert_array_equal(model(x), expected(arrays, dtype, x))
    for tensor in files.tensors(path):
        if tensor.dtype is not None:
            np.testing.assert_array_equal(files.mapped(path, tensor.name)[0], arrays[tensor.name])


def test_bfloat16_of_the_safetensors_package(tmp_path):
    torch = pytest.importorskip("torch")
    package = pytest.importorskip("safetensors.torch")
    arrays = {name: torch.from_numpy(array).bfloat16() for name, array in state().items() if name != "ids"}
    package.save_file(arrays, tmp_path / "w.safetensors")
    with (
        rowfold.Model.from_file(tmp_path / "w.safetensors", CHAIN, **NAMES) as read,
        rowfold.Model.from_state_dict(arrays, CHAIN, **NAMES) as given,
    ):
        assert read.info.dtype == "bfloat16"
        np.testing.assert_array_equal(read(X), given(X))
