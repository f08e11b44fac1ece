# SPDX-License-Identifier: MIT
"""Arrays of other frameworks: torch, DLPack, __cuda_array_interface__, buffers; cupy and jax where installed."""

from __future__ import annotations

import array as stdlib_array
import gc
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rowfold
from exporters import Exporter
from rowfold import dlpack
from stored import store, widen
from torch_devices import DEVICES, needs_torch, needs_torch_cuda, torch

K, N = 7, 5
CHAIN = "linear | mul(2) | logsumexp"


def installed(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def weights(rng):
    return rng.normal(size=(N, K)).astype(np.float32), rng.normal(size=N).astype(np.float32)


@pytest.fixture
def model(weights):
    return rowfold.Model(CHAIN, K, N, backend="reference").load_weights(*weights)


@pytest.fixture
def x(rng):
    return rng.normal(size=(3, K)).astype(np.float32)


def test_importing_rowfold_imports_no_framework():
    code = "import rowfold, rowfold.kinds, sys; sys.exit(any(n in sys.modules for n in ('torch', 'cupy', 'jax')))"
    environment = {"PYTHONPATH": str(Path(rowfold.__file__).resolve().parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


# DLPack by hand.


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("offset", [0, 64])
def test_a_dlpack_export_is_read_and_deleted_once(model, x, versioned, dense, offset):
    given = Exporter(x, versioned=versioned, dense=dense, offset=offset)
    out = np.empty((3, 1), np.float32)
    assert model(given, out=out) is out
    np.testing.assert_array_equal(out, model(x))
    gc.collect()
    assert (given.deleted, given.streams) == (1, [None])


@pytest.mark.parametrize("layout", ["transposed", "reversed", "every second", "broadcast"])
def test_a_dlpack_export_may_have_any_strides(model, x, layout):
    array = {
        "transposed": np.asfortranarray(x),
        "reversed": x[::-1, ::-1],
        "every second": np.repeat(x, 2, axis=1)[:, ::2],
        "broadcast": np.broadcast_to(x[0], (3, K)),
    }[layout]
    given, out = Exporter(array), np.empty((3, 1), np.float32)
    np.testing.assert_array_equal(model(given, out=out), model(array))
    assert given.deleted == 1


def test_a_null_deleter_is_not_called(model, x):
    given = Exporter(x, deleter=False)
    model(given, out=np.empty((3, 1), np.float32))
    assert given.deleted == 0


def test_memory_of_a_newer_major_version_is_given_back_unread(model, x):
    given = Exporter(x, major=2)
    with pytest.raises(TypeError, match="x came as DLPack version 2; expected 1 or older"):
        model(given)
    gc.collect()
    assert given.deleted == 1


@pytest.mark.parametrize(
    ("keywords", "dtype", "message"),
    [
        ({}, np.int32, "x has dtype int32; expected float32, float64, float16 or bfloat16"),
        ({"code": 5}, np.float64, "x has dtype complex64"),
        ({"lanes": 4}, np.float32, "x has dtype float32 x 4"),
        ({"code": 9}, np.float32, "x has dtype code 9, bits 32"),
        ({}, np.uint16, "x has dtype uint16"),
    ],
)
def test_other_dlpack_dtypes_are_refused_and_given_back(model, x, keywords, dtype, message):
    given = Exporter(x.astype(dtype), **keywords)
    with pytest.raises(TypeError, match=message):
        model(given)
    gc.collect()
    assert given.deleted == 1


def test_a_dlpack_export_of_a_wrong_shape_is_given_back(model, x):
    given = Exporter(x[:, 1:])
    with pytest.raises(ValueError, match=r"x has shape \(3, 6\); expected \(\.\.\., 7\)"):
        model(given)
    gc.collect()
    assert given.deleted == 1


def test_bfloat16_by_code_and_as_bits(weights, x):
    w, b = weights
    model = rowfold.Model(CHAIN, K, N, dtype="bfloat16", backend="reference")
    model.load_weights(Exporter(store(w, "bfloat16"), code=4), Exporter(store(b, "bfloat16")))
    bits = store(x, "bfloat16")
    expected = model(bits)
    out = np.empty((3, 1), np.float32)
    np.testing.assert_array_equal(model(Exporter(bits, code=4), out=out), expected)
    np.testing.assert_array_equal(model(Exporter(bits), out=out), expected)


@pytest.mark.parametrize("device", [(dlpack.CUDA, 0), (dlpack.CUDA, 1), (dlpack.CUDA_MANAGED, 0)])
def test_cuda_memory_is_refused_by_a_cpu_model(model, x, device):
    given = Exporter(x, device=device)
    with pytest.raises(
        ValueError, match=f"x is on CUDA device {device[1]}, but the model runs on reference; expected the host"
    ):
        model(given)
    gc.collect()
    assert (given.deleted, given.streams) == (1, [1])  # CUDA's legacy default stream: 0 is not allowed


def test_pinned_host_memory_is_host_memory(model, x):
    given, out = Exporter(x, device=(dlpack.CUDA_HOST, 0)), np.empty((3, 1), np.float32)
    np.testing.assert_array_equal(model(given, out=out), model(x))


def test_other_devices_are_refused(model, x):
    with pytest.raises(ValueError, match="x is on DLPack device type 7; expected a CPU"):
        model(Exporter(x, device=(7, 0)))


def test_a_capsule_is_not_consumed_twice(model, x):
    given = Exporter(x)
    capsule = given.__dlpack__()
    given.__dlpack__ = lambda **keywords: capsule
    out = np.empty((3, 1), np.float32)
    model(given, out=out)
    with pytest.raises(TypeError, match="gave no unused DLPack capsule"):
        model(given, out=out)
    assert given.deleted == 1


def test_what_fails_to_export_says_so(model):
    class Broken:
        def __dlpack_device__(self):
            return (dlpack.CPU, 0)

        def __dlpack__(self, **keywords):
            raise BufferError("not today")

    with pytest.raises(TypeError, match="x is a .*Broken, and its __dlpack__ failed: BufferError: not today"):
        model(Broken())


def test_without_a_way_to_make_a_result_out_is_asked_for(model, x):
    with pytest.raises(TypeError, match="how to make a exporters.Exporter for the result is not known; pass out="):
        model(Exporter(x))


def test_out_by_dlpack(model, x):
    y = np.zeros((3, 1), np.float32)
    out = Exporter(y)
    assert model(Exporter(x), out=out) is out
    np.testing.assert_array_equal(y, model(x))
    gc.collect()
    assert out.deleted == 1


@pytest.mark.parametrize(
    ("array", "flags", "message"),
    [
        (np.zeros((3, 1), np.float32), dlpack.READ_ONLY, "out is read-only, or exports itself as a copy"),
        (np.zeros((3, 1), np.float32), dlpack.IS_COPIED, "out is read-only, or exports itself as a copy"),
        (np.zeros((3, 2), np.float32), 0, r"out has shape \(3, 2\); expected \(3, 1\)"),
        (np.zeros((3, 1), np.float64), 0, "out has dtype float64; expected float32, the model's y_dtype"),
        (np.zeros((3, 1), np.float32)[::-1], 0, "out has strides"),
    ],
)
def test_out_by_dlpack_is_checked_and_left_alone(model, x, array, flags, message):
    out = Exporter(array, flags=flags)
    with pytest.raises((TypeError, ValueError), match=message):
        model(Exporter(x), out=out)
    gc.collect()
    assert out.deleted == 1
    assert not array.any()


def test_the_array_api_standard_makes_the_result(model, x):
    class Standard(Exporter):
        def __array_namespace__(self):
            class Space:
                float32 = "f4"

                @staticmethod
                def empty(shape, dtype, device):
                    return Standard(np.empty(shape, dtype), device=device)

            return Space

    y = model(Standard(x))
    assert isinstance(y, Standard)
    np.testing.assert_array_equal(y.array, model(x))


# __cuda_array_interface__: no CUDA here, so only what is refused before the device is asked.


class CudaArray:
    def __init__(self, array, **changes):
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.ctypes.data, False),
            "version": 3,
            **changes,
        }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "x is on a CUDA device, but the model runs on reference; expected the host"),
        ({"mask": 1}, "x has a mask"),
        ({"strides": (4, 12)}, "x has strides"),
        ({"typestr": "<i4"}, "x has dtype int32"),
        ({"shape": (3, 6)}, r"x has shape \(3, 6\)"),
    ],
)
def test_the_cuda_array_interface_is_checked(model, x, changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        model(CudaArray(x, **changes))


# The buffer protocol.


def test_buffers_give_numpy_arrays(model, x):
    expected = model(x)
    for given in (memoryview(x), memoryview(x.copy()).toreadonly()):
        y = model(given)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, expected)
    row = model(stdlib_array.array("f", x[0]))
    np.testing.assert_array_equal(row, expected[0])
    with pytest.raises(TypeError, match="x has dtype uint8"):
        model(x.tobytes())


# PyTorch, on the CPU and on CUDA.


def torch_model(weights, device, dtype="float32", **keywords):
    w, b = (torch.tensor(v, device=device).to(getattr(torch, dtype)) for v in weights)
    return rowfold.Model(CHAIN, K, N, dtype=dtype, device=device, **keywords).load_weights(w, b)


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_in_tensors_out(weights, x, device, dtype):
    kind = getattr(torch, dtype)
    model = torch_model(weights, device, dtype, y_dtype=dtype)
    given = torch.tensor(x, device=device).to(kind)
    y = model(given)
    assert (type(y), y.dtype, y.shape, y.device) == (torch.Tensor, kind, (3, 1), given.device)
    stored = {name: store(v, dtype) for name, v in zip("xwb", (x, *weights))}
    host = rowfold.Model(CHAIN, K, N, dtype=dtype, y_dtype=dtype, backend="reference")
    expected = widen(np.asarray(host.load_weights(stored["w"], stored["b"])(stored["x"])), dtype)
    ulp = {"float32": 2e-6, "float64": 4e-15, "float16": 2e-3, "bfloat16": 2e-2}[dtype]  # a few, of values near 3
    np.testing.assert_allclose(y.double().cpu().numpy(), expected, atol=ulp)


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_any_layout(weights, x, device):
    model = torch_model(weights, device)
    dense = torch.tensor(x, device=device)
    expected = model(dense)
    wide = torch.zeros(3, 2 * K, device=device)
    wide[:, ::2] = dense
    block = torch.zeros(3, K + 9, device=device)
    block[:, 2 : 2 + K] = dense
    for given in (dense.t().contiguous().t(), wide[:, ::2], block[:, 2 : 2 + K], dense.view(1, 3, 1, K)):
        torch.testing.assert_close(model(given).reshape(3, 1), expected, rtol=0, atol=0)
    assert model(dense.view(1, 3, 1, K)).shape == (1, 3, 1, 1)
    assert model(dense[0]).shape == (1,)
    assert model(dense[:0]).shape == (0, 1)


@needs_torch
@pytest.mark.parametrize("device", DEVICES)
def test_out_is_written_and_its_version_counts(weights, x, device):
    model = torch_model(weights, device)
    given = torch.tensor(x, device=device)
    block = torch.zeros(3, 4, device=device)
    out = block[:, 1:2]
    before = block._version
    assert model(given, out=out) is out
    assert block._version > before
    torch.testing.assert_close(out, model(given), rtol=0, atol=0)
    assert not block[:, [0, 2, 3]].any()


def test_weights_are_checked_as_they_are_exported(weights, x):
    """Not as the exporter's attributes say: a smaller export would be read beyond its end."""
    w, b = weights
    for shape in ((N, K), None):
        small, short = Exporter(w[:, :2].copy()), Exporter(b[:1].copy())
        whole, row = Exporter(w), Exporter(b)
        for exporter in (small, short, whole, row):
            del exporter.shape  # an exporter needs none
            if shape:
                exporter.shape = shape if exporter in (small, whole) else shape[:1]
        with pytest.raises(ValueError, match=rf"weight has shape \({N}, 2\); expected \({N}, {K}\)"):
            rowfold.Model(CHAIN, K, N).load_weights(small)
        with pytest.raises(ValueError, match=rf"bias has shape \(1,\); expected \({N},\)"):
            rowfold.Model(CHAIN, K, N).load_weights(w, short)
        model = rowfold.Model(CHAIN, K, N).load_weights(whole, row)
        np.testing.assert_array_equal(model(x), rowfold.Model(CHAIN, K, N).load_weights(w, b)(x))
        assert small.deleted == short.deleted == 1


def test_an_export_on_another_device_than_said_is_refused(model, x):
    given = Exporter(x[:, ::-1])
    given.managed.dl_tensor.device.device_type = dlpack.CUDA
    with pytest.raises(TypeError, match="x came on DLPack device type 2, which is not what its __dlpack_device__ says"):
        model(given, out=np.empty((3, 1), np.float32))
    assert given.deleted == 1


@needs_torch
def test_a_result_that_memory_cannot_hold(model):
    """Rows without columns, and rows that lie in one place, take none; their results and copies do."""
    narrow = rowfold.Model("linear(0, 5) | max", device="cpu").load_weights(np.zeros((5, 0), np.float32))
    for rows in (1 << 46, 1 << 58):  # beyond all addresses: a kernel may promise memory that there is not
        for given in (np.empty((rows, 0), np.float32), torch.empty(rows, 0)):
            with pytest.raises(rowfold.OutOfMemoryError, match=rf"no memory for a result of shape \({rows}, 1\)"):
                narrow(given)
        for given in (np.broadcast_to(np.float32(0), (rows, K)), torch.zeros(1, K).expand(rows, K)):
            with pytest.raises(rowfold.OutOfMemoryError, match=rf"no memory for a copy of x, of shape \({rows}, {K}\)"):
                model(given)


@needs_torch
def test_out_of_torch_is_checked(model, x):
    given = torch.tensor(x)
    y = torch.zeros(3, 1)
    cases = [
        (y.numpy(), TypeError, "out is a numpy.ndarray; expected a torch.Tensor, as x is one"),
        (y.double(), TypeError, "out has dtype torch.float64; expected float32, the model's y_dtype"),
        (torch.zeros(2, 3), ValueError, r"out has shape \(2, 3\); expected \(3, 1\)"),
        (torch.zeros(1, 1).expand(3, 1), ValueError, "out has strides"),
        (torch.zeros(3, 1, device="meta"), ValueError, "out is on meta; expected x's device, cpu"),
        (torch.zeros(3, 1, requires_grad=True), ValueError, "out requires grad and grad mode is on"),
        (given[:, :1], ValueError, "overlaps x"),
    ]
    for out, error, message in cases:
        with pytest.raises(error, match=message):
            model(given, out=out)
    assert torch.equal(given, torch.tensor(x))


@needs_torch
def test_a_tensor_that_needs_grad_is_refused_in_grad_mode(model, x):
    given = torch.tensor(x, requires_grad=True)
    with pytest.raises(ValueError, match=r"x requires grad and grad mode is on.*torch\.no_grad\(\).*x\.detach\(\)"):
        model(given)
    with torch.no_grad():
        y = model(given)
    with torch.inference_mode():
        assert torch.equal(model(given), y)
    assert torch.equal(model(given.detach()), y)


@needs_torch
def test_tensors_that_are_no_plain_memory_are_refused(model, x):
    given = torch.tensor(x)
    with pytest.raises(ValueError, match="x is on the device meta; expected cpu or cuda"):
        model(given.to("meta"))
    with pytest.raises(TypeError, match="x has layout torch.sparse_coo; expected torch.strided"):
        model(given.to_sparse())
    with pytest.raises(TypeError, match="x has dtype torch.int64; expected float32"):
        model(given.long())
    negated = torch.complex(torch.zeros(3, K), given).conj().imag
    with pytest.raises(ValueError, match=r"x is a lazily negated view; pass x\.resolve_neg\(\)"):
        model(negated)
    with pytest.raises(TypeError, match="whose memory cannot be read"):
        torch.vmap(model)(given)


@needs_torch
def test_uint16_tensors_are_bfloat16_where_the_dtype_says_so(weights, x):
    model = torch_model(weights, "cpu", "bfloat16")
    given = torch.tensor(x).bfloat16()
    assert torch.equal(model(given.view(torch.uint16)), model(given))
    with pytest.raises(TypeError, match="x has dtype torch.uint16"):
        torch_model(weights, "cpu")(given.view(torch.uint16))


@needs_torch
def test_parameters_are_weights(weights, x):
    layer = torch.nn.Linear(K, N)
    model = rowfold.Model(CHAIN, K, N).load_weights(layer.weight, layer.bias)
    with torch.no_grad():
        expected = torch.logsumexp(2 * layer(torch.tensor(x)), dim=1, keepdim=True)
        torch.testing.assert_close(model(torch.tensor(x)), expected)
    with pytest.raises(ValueError, match=r"weight has shape \(7, 5\); expected \(5, 7\); pass weight.T"):
        rowfold.Model(CHAIN, K, N).load_weights(layer.weight.t())


@needs_torch_cuda
def test_the_model_s_device_is_kept_apart_from_the_tensor_s(weights, x):
    w, b = weights
    host, device = torch_model(weights, "cpu"), torch_model(weights, "cuda")
    given = torch.tensor(x)
    with pytest.raises(ValueError, match="x is on CUDA device 0, but the model runs on .*; expected the host"):
        host(given.cuda())
    with pytest.raises(ValueError, match="weight is on CUDA device 0, but the model runs on"):
        rowfold.Model(CHAIN, K, N, device="cpu").load_weights(torch.tensor(w).cuda())
    torch.testing.assert_close(device(given), device(given.cuda()).cpu(), rtol=0, atol=0)
    np.testing.assert_array_equal(device(x), device(given).numpy())


@needs_torch_cuda
def test_the_work_is_ordered_on_the_current_stream(weights, x):
    model = torch_model(weights, "cuda")
    given = torch.tensor(x).cuda()
    expected = model(given)
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
            late = torch.zeros_like(given)
            late.copy_(given)
            y = model(late)
            late.fill_(float("nan"))
        stream.synchronize()
        assert torch.equal(y, expected)


@needs_torch_cuda
def test_a_call_can_be_captured_in_a_cuda_graph(weights, x):
    model = torch_model(weights, "cuda")
    given = torch.tensor(x).cuda()
    model(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(given)
    other = given.flip(0)
    expected = model(other)
    given.copy_(other)
    graph.replay()
    assert torch.equal(y, expected)


# jax and cupy, where they are installed.


def test_jax_arrays(model, x):
    jax = pytest.importorskip("jax")
    cpu = jax.devices("cpu")[0]
    given = jax.device_put(x, cpu)
    y = model(given)
    assert isinstance(y, jax.Array)
    np.testing.assert_array_equal(np.asarray(y), model(x))
    with pytest.raises(TypeError, match="out is a jax array, which is immutable"):
        model(given, out=y)
    with pytest.raises(TypeError, match="traced array"):  # in jax's own words
        jax.jit(model)(given)


def test_jax_bfloat16(weights, x):
    jax = pytest.importorskip("jax")
    cpu = jax.devices("cpu")[0]
    given, w, b = (jax.device_put(v, cpu).astype("bfloat16") for v in (x, *weights))
    model = rowfold.Model(CHAIN, K, N, dtype="bfloat16", y_dtype="bfloat16", backend="reference").load_weights(w, b)
    y = model(given)
    assert (isinstance(y, jax.Array), y.dtype.name) == (True, "bfloat16")


def test_jax_arrays_on_cuda(weights, x):
    jax = pytest.importorskip("jax")
    try:
        gpu = jax.devices("cuda")[0]
    except RuntimeError as error:
        pytest.skip(f"jax has no CUDA device: {error}")
    # Not "cuda", which is the current device: with several that need not be the first of jax's.
    model = rowfold.Model(CHAIN, K, N, device=f"cuda:{gpu.local_hardware_id}")
    model.load_weights(*(jax.device_put(v, gpu) for v in weights))
    y = model(jax.device_put(x, gpu))
    assert isinstance(y, jax.Array) and y.device == gpu
    np.testing.assert_array_equal(np.asarray(y), model(x))


def test_cupy_arrays(weights, x):
    cupy = pytest.importorskip("cupy")
    if not any(b.name == "cuda" and b.available for b in rowfold.backends()):
        pytest.skip("no CUDA backend")
    model = rowfold.Model(CHAIN, K, N, device="cuda").load_weights(*map(cupy.asarray, weights))
    given = cupy.asarray(x)
    expected = model(x)
    for array in (given, cupy.asfortranarray(given), given[::1]):
        y = model(array)
        assert isinstance(y, cupy.ndarray)
        np.testing.assert_array_equal(y.get(), expected)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = cupy.empty((3, 1), cupy.float32)
        assert model(cupy.asarray(x), out=out) is out
        stream.synchronize()
    np.testing.assert_array_equal(out.get(), expected)
