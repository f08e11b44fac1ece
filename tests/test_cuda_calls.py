# SPDX-License-Identifier: MIT
"""What a call on a GPU promises beside the right numbers: device pointers, streams, graphs, threads, memory, devices,
errors.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rowfold
from cases import Case, make_case, same_bits
from cuda_kernels import needs_cuda
from datasets import ALL
from rowfold import _lib
from torch_devices import Gate, needs_torch_cuda, on_cuda, torch

pytestmark = needs_cuda

CHAINS = ["linear", "linear | logsumexp", "linear | mul(2) | max | gelu", "linear | clamp(-1, 1) | sum"]


def _case(chain: str, batch: int, k: int, n: int, dtype: str = "float32", kind: str = "sigma5", seed: int = 0) -> Case:
    return make_case(chain, ALL[kind](np.random.default_rng(seed), batch, k, n), dtype=dtype)


def _on_device(case: Case, **keywords: object) -> tuple:
    x, w, b = (on_cuda(v) for v in (case.x, case.w, case.b))
    n, k = case.w.shape
    model = rowfold.Model(
        case.chain, k, n, dtype=case.dtype, y_dtype=case.y_dtype, backend="cuda", simplify="none", **keywords
    )
    return model.load_weights(w, b), x


@pytest.mark.parametrize("chain", CHAINS)
@needs_torch_cuda
def test_device_arrays(chain: str) -> None:
    """The bits of the host call; x and y of any leading dimension, at any address."""
    case = _case(chain, 37, 65, 130)
    model, x = _on_device(case)
    expected = case.run("cuda", simplify="none")
    y = model(x)
    assert y.is_cuda
    assert same_bits(expected, y.cpu().numpy())
    wide = torch.full((37, 80), float("nan"), device="cuda")
    wide[:, 3:68] = x
    out = torch.full((37, expected.shape[1] + 5), -7.0, device="cuda")
    model(wide[:, 3:68], out=out[:, 2 : 2 + expected.shape[1]])
    assert same_bits(expected, out[:, 2 : 2 + expected.shape[1]].contiguous().cpu().numpy())
    assert bool((out[:, :2] == -7).all())
    assert bool((out[:, 2 + expected.shape[1] :] == -7).all())


@needs_torch_cuda
def test_stream_order() -> None:
    """Work goes to the caller's stream, behind what is there already, and the call does not wait for it."""
    case = _case("linear | logsumexp", 256, 512, 1024)
    model, x = _on_device(case)
    expected = model(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(x)
        gate = Gate(stream)
        late.copy_(x)
        y = model(late)
        assert not stream.query(), "forward waited for the stream"
        gate.open()
    stream.synchronize()
    assert torch.equal(y, expected)


@pytest.mark.parametrize("batch", [1, 16, 200])
@needs_torch_cuda
def test_graph(batch: int) -> None:
    case = _case("linear | mul(2) | logsumexp | gelu", batch, 300, 700)
    model, x = _on_device(case)
    x, y = x.clone(), torch.empty(batch, 1, device="cuda")
    model(x, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x, out=y)
    for seed in range(3):
        other = _case(case.chain, batch, 300, 700, seed=seed + 10)
        x.copy_(torch.from_numpy(other.x))
        y.fill_(float("nan"))
        graph.replay()
        assert torch.equal(y, model(x.clone()))


@needs_torch_cuda
def test_graph_on_another_stream() -> None:
    """Captured on one stream and replayed on others, between calls of the same model that are not captured."""
    case = _case("linear | logsumexp", 130, 300, 700)
    model, given = _on_device(case)
    x, y = given.clone(), torch.empty(130, 1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        model(x, out=y)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for i in range(12):
        rows = given.roll(i, 0)
        expected = model(rows)
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[i % 3]):
            x.copy_(rows)
            y.fill_(float("nan"))
            graph.replay()
        with torch.cuda.stream(streams[(i + 1) % 3]):
            beside = model(rows)
        torch.cuda.synchronize()
        assert torch.equal(y, expected)
        assert torch.equal(beside, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("chain", ["linear", "linear | logsumexp"])
@needs_torch_cuda
def test_batch_invariant_at_every_size(chain: str, dtype: str) -> None:
    """From 1 to 1024 rows, from the first on and to the last."""
    case = _case(chain, 1024, 200, 333, dtype)
    model, x = _on_device(case, batch_invariant=True)
    whole = model(x)
    case.check(whole.cpu().numpy(), expected=case.expected("cuda"))
    sizes = range(1, 1025)
    assert not [rows for rows in sizes if not torch.equal(model(x[:rows]), whole[:rows])]
    assert not [rows for rows in sizes if not torch.equal(model(x[-rows:]), whole[-rows:])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@needs_torch_cuda
def test_threads_and_streams(dtype: str) -> None:
    """One model, many threads with a stream each, and some with arrays of the host."""
    case = _case("linear | logsumexp", 96, 256, 900, dtype)
    model, x = _on_device(case)
    expected = {rows: model(x[:rows]) for rows in (1, 7, 33, 96)}
    on_host = {rows: y.cpu().numpy() for rows, y in expected.items()}
    wrong: list = []
    torch.cuda.synchronize()

    def device_arrays() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                results = [(rows, model(x[:rows])) for rows in expected]
                stream.synchronize()
                wrong.extend(rows for rows, y in results if not torch.equal(y, expected[rows]))

    def host_arrays() -> None:
        for _ in range(20):
            wrong.extend(rows for rows, y in on_host.items() if not same_bits(model(case.x[:rows]), y))

    threads = [threading.Thread(target=work) for work in (*[device_arrays] * 5, *[host_arrays] * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.alone
@needs_torch_cuda
def test_memory() -> None:
    """A forward takes what workspace_size says, not the logits, and a closed model gives its weights back."""
    torch.cuda.synchronize()
    start = torch.cuda.mem_get_info()[0]
    batch, k, n = 512, 256, 60_000
    x, w = torch.randn(batch, k, device="cuda"), torch.randn(n, k, device="cuda")
    model = rowfold.Model("linear | logsumexp", k, n, backend="cuda").load_weights(w)
    out = torch.empty(batch, 1, device="cuda")
    model(x[:1], out=out[:1])
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    model(x, out=out)
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    granule = 64 << 20  # pools grow in steps of up to this
    assert taken <= model.workspace_size(batch) + granule
    assert model.workspace_size(batch) < batch * n * 4 / 2
    model.close()
    del x, w, out
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= start - granule


POOL = """
import ctypes, numpy as np, rowfold, torch
from rowfold import _lib
def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
def call(batch, n):
    x, y = torch.ones(batch, 4096, device="cuda"), torch.empty(batch, 1, device="cuda")
    args = _lib.ForwardArgs(size=ctypes.sizeof(_lib.ForwardArgs), x=x.data_ptr(), y=y.data_ptr(), batch=batch)
    args.x_memory = args.y_memory = _lib.Memory.DEVICE
    with rowfold.Model("linear | logsumexp", 4096, n, backend="cuda").load_weights(np.ones((n, 4096), "f")) as model:
        _lib.load().rf_model_forward_ex(model._open().pointer, ctypes.byref(args))
        return model.workspace_size(batch), free()
call(16384, 512)
before = free()
size, during = call(16384, 512)
print(size, before - during, before - free())
"""


def _python(code: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(Path(rowfold.__file__).resolve().parents[1])}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.alone
@needs_torch_cuda
def test_the_last_model_gives_workspaces_back() -> None:
    """In a process of its own, where no other model keeps them: what two calls in turn took was had anew."""
    done = _python(POOL)
    assert done.returncode == 0, done.stderr
    size, taken, kept = map(int, done.stdout.split())
    assert size > 256 << 20
    assert taken > 0.9 * size
    assert kept <= 64 << 20


@pytest.mark.alone
@needs_torch_cuda
def test_no_memory_for_the_weights() -> None:
    """A status, after which the same model can be loaded: here from weights of half the memory, lent instead of
    copied.
    """
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    if free < 0.6 * total:
        pytest.skip("others use the GPU's memory")
    k = 32768
    n = int(0.55 * total) // (2 * k)
    w = torch.zeros(n, k, dtype=torch.bfloat16, device="cuda")
    x = torch.ones(3, k, dtype=torch.bfloat16, device="cuda")
    with rowfold.Model("linear | max", k, n, dtype="bfloat16", backend="cuda") as model:
        for _ in range(2):
            with pytest.raises(rowfold.OutOfMemoryError, match="memory for the weights"):
                model.load_weights(w)
            with pytest.raises(rowfold.NotLoadedError):
                model(x)
        assert model.load_weights(w, borrow=True)(x).tolist() == [[0.0]] * 3
    del w
    torch.cuda.empty_cache()


@pytest.mark.alone
@needs_torch_cuda
def test_no_memory_for_a_workspace() -> None:
    """A status where the caller brings none, the result untouched, and the next call works. One row of x is wanted so
    often that copies of it do not fit.
    """
    k = 4096
    count = int(1.2 * torch.cuda.mem_get_info()[1] / (4 * k))
    x, y = torch.ones(1, k, device="cuda"), torch.full((count, 1), -7.0, device="cuda")
    wanted = (ctypes.c_int64 * count)()
    with rowfold.Model("linear | max", k, 3, backend="cuda").load_weights(np.ones((3, k), np.float32)) as model:
        for _ in range(2):
            with pytest.raises(rowfold.OutOfMemoryError, match="memory for a workspace"):
                _forward(model, x.data_ptr(), y.data_ptr(), 1, rows=wanted, num_rows=count)
        assert bool((y == -7).all())
        _forward(model, x.data_ptr(), y.data_ptr(), 1, rows=wanted, num_rows=3)
        torch.cuda.synchronize()
        assert y[:5].flatten().tolist() == [k, k, k, -7, -7]


def _forward(model: rowfold.Model, x: int, y: int, batch: int, **others: Any) -> None:
    """The C call with these addresses, said to be the device's."""
    args = _lib.ForwardArgs(
        size=ctypes.sizeof(_lib.ForwardArgs),
        x=x,
        y=y,
        batch=batch,
        x_dtype=_lib.DType.FLOAT32,
        y_dtype=_lib.DType.FLOAT32,
        x_memory=_lib.Memory.DEVICE,
        y_memory=_lib.Memory.DEVICE,
        **others,
    )
    _lib.load().rf_model_forward_ex(model._open().pointer, ctypes.byref(args))


@needs_torch_cuda
def test_host_memory_called_the_device_s() -> None:
    """Refused before a kernel reads it, which would end the process's use of the device."""
    case = _case("linear | max", 3, 65, 20)
    model, x = _on_device(case)
    y, plain = torch.empty(3, 1, device="cuda"), np.zeros((3, 65), np.float32)
    with pytest.raises(rowfold.InvalidArgumentError, match="x is memory of the host"):
        _forward(model, plain.ctypes.data, y.data_ptr(), 3)
    with pytest.raises(rowfold.InvalidArgumentError, match="y is memory of the host"):
        _forward(model, x.data_ptr(), plain.ctypes.data, 3)
    assert not plain.any()
    _forward(model, x.data_ptr(), y.data_ptr(), 3)
    assert torch.equal(y, model(x))


FAULT = """
import numpy as np, rowfold, torch
w, x = np.ones((5, 3), np.float32), np.ones((2, 3), np.float32)
model = rowfold.Model("linear | max", 3, 5, backend="cuda").load_weights(w)
assert (model(x) == 3).all()
try:
    torch.zeros(1, device="cuda")[torch.tensor([7], device="cuda")]
    torch.cuda.synchronize()
except RuntimeError:
    pass
for call in (lambda: model(x), lambda: model(x), lambda: rowfold.Model("linear", 3, 5, backend="cuda").load_weights(w)):
    try:
        call()
    except rowfold.DeviceError as error:
        print(error)
model.close()
print((rowfold.Model("linear | max", 3, 5, backend="reference").load_weights(w)(x) == 3).all())
"""


@pytest.mark.heavy
@needs_torch_cuda
def test_a_device_that_failed() -> None:
    """An error that ends a process's use of the device is reported by each call, in CUDA's words; the host goes on."""
    done = _python(FAULT)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 4), done.stderr
    assert all("CUDA says" in line and "cudaErrorAssert" in line for line in lines[:3]), lines
    assert lines[3] == "True"


FORKS = """
import os, signal, threading
import numpy as np, rowfold
w, x = np.ones((5, 3), np.float32), np.ones((2, 3), np.float32)
model = rowfold.Model("linear | max", 3, 5, backend="cuda").load_weights(w)
stop = threading.Event()

def busy():
    while not stop.is_set():
        assert (rowfold.Model("linear | max", 3, 5, backend="cuda").load_weights(w)(x) == 3).all()

def refused(call):
    try:
        call()
    except (rowfold.DeviceError, rowfold.UnavailableError) as error:
        return bool(str(error))
    return False

def child():
    signal.alarm(20)
    made = refused(lambda: rowfold.Model("linear | max", 3, 5, backend="cuda").load_weights(w))
    called = refused(lambda: model(x))
    host = rowfold.Model("linear | max", 3, 5, device="cpu").load_weights(w)
    right = (host(x) == 3).all()
    os._exit(4 * (not made) + 2 * (not called) + (not right))

threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
ends = []
for _ in range(8):
    process = os.fork()
    if not process:
        child()
    ends.append(os.waitpid(process, 0)[1])
stop.set()
for thread in threads:
    thread.join()
print(ends, (model(x) == 3).all())
"""


def test_a_child_of_fork_is_refused_and_does_not_wait() -> None:
    """Whatever locks the parent's threads hold: CUDA does not work there, the host does. The parent goes on."""
    done = _python(FORKS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"{[0] * 8} True", done.stdout


@needs_torch_cuda
def test_device_that_is_not_there() -> None:
    missing = torch.cuda.device_count()
    with pytest.raises(rowfold.UnavailableError, match=f"cuda:{missing}"):
        rowfold.Model("linear", 3, 3, device=f"cuda:{missing}")


def _current_device() -> int:
    """As the driver sees it: what a thread's next allocation is made on."""
    device = ctypes.c_int(-1)
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetDevice(ctypes.byref(device)) == 0
    return device.value


@pytest.fixture
def second() -> str:
    """The second device that rowfold runs on."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one CUDA device")
    torch.zeros(1, device="cuda:1")
    torch.zeros(1, device="cuda:0")
    assert _current_device() == 0
    return "cuda:1"


@pytest.mark.parametrize("chain", CHAINS)
@needs_torch_cuda
def test_second_device(second: str, chain: str) -> None:
    """The first's bits, from arrays of the host and of the second; what was the current device still is."""
    case = _case(chain, 37, 65, 130)
    first, x = _on_device(case)
    expected = first(x)
    for w, b in ((case.w, case.b), [torch.from_numpy(v).to(second) for v in (case.w, case.b)]):
        model = rowfold.Model(case.chain, 65, 130, device=second, simplify="none").load_weights(w, b)
        assert _current_device() == 0
        y = model(x.to(second))
        assert (y.device, _current_device()) == (torch.device(second), 0)
        assert torch.equal(y.cpu(), expected.cpu())
        assert same_bits(model(case.x), expected.cpu().numpy())
        assert _current_device() == 0
    with torch.cuda.device(1):
        torch.zeros(1, device="cuda")
        assert torch.equal(first(x), expected)
        assert _current_device() == 1
    model.close()
    assert _current_device() == 0


@needs_torch_cuda
def test_pointers_of_another_device(second: str) -> None:
    """Refused by name, in Python and in C, with nothing written and the current device as it was."""
    case = _case("linear | max", 7, 65, 20)
    model = rowfold.Model(case.chain, 65, 20, device=second).load_weights(case.w, case.b)
    here = torch.from_numpy(case.x).cuda()
    there = here.to(second)
    y = torch.full((7, 1), -7.0, device=second)
    with pytest.raises(rowfold.InvalidArgumentError, match="x is on CUDA device 0.*CUDA device 1"):
        model(here)
    with pytest.raises(rowfold.InvalidArgumentError, match="out is on cuda:0; expected x's device, cuda:1"):
        model(there, out=y.to("cuda:0"))
    with pytest.raises(rowfold.InvalidArgumentError, match="weight is on CUDA device 0.*CUDA device 1"):
        rowfold.Model("linear", 65, 20, device=second).load_weights(torch.from_numpy(case.w).cuda())
    with pytest.raises(rowfold.InvalidArgumentError, match="x is on CUDA device 0; expected the model's, 1"):
        _forward(model, here.data_ptr(), y.data_ptr(), 7)
    with pytest.raises(rowfold.InvalidArgumentError, match="y is on CUDA device 0; expected the model's, 1"):
        _forward(model, there.data_ptr(), here.data_ptr(), 7)
    assert bool((y == -7).all())
    assert np.array_equal(here.cpu().numpy(), case.x)
    assert _current_device() == 0


@needs_torch_cuda
def test_two_devices_at_once(second: str) -> None:
    """A model on each, threads on both."""
    case = _case("linear | logsumexp", 96, 256, 900)
    models = [rowfold.Model(case.chain, 256, 900, device=d).load_weights(case.w, case.b) for d in ("cuda:0", second)]
    expected, wrong = models[0](case.x), []

    def work(i: int) -> None:
        x = torch.from_numpy(case.x).to(f"cuda:{i}")
        for _ in range(30):
            if not same_bits(models[i](x).cpu().numpy(), expected) or not same_bits(models[i](case.x), expected):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_torch_cuda
def test_weights_that_are_not_on_the_device() -> None:
    """A host pointer called a device's is refused before a kernel reads it."""
    w = np.ones((4, 64), np.float32)
    model = rowfold.Model("linear(64, 4) | max", backend="cuda")
    handle = model._open()
    native = _lib.Weights(size=ctypes.sizeof(_lib.Weights), weight=w.ctypes.data, memory=_lib.Memory.DEVICE)
    with pytest.raises(rowfold.InvalidArgumentError, match="weight is memory of the host"):
        handle.library.rf_model_load_weights_ex(handle.pointer, ctypes.byref(native))
    on_device = torch.ones(4, 64, device="cuda")
    native.weight, native.bias = on_device.data_ptr(), w.ctypes.data
    with pytest.raises(rowfold.InvalidArgumentError, match="bias is memory of the host"):
        handle.library.rf_model_load_weights_ex(handle.pointer, ctypes.byref(native))
    model.load_weights(w)
    assert float(model(torch.ones(1, 64, device="cuda"))) == 64


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 8), ("float32", 96)])
@needs_torch_cuda
def test_many_states_of_many_rows(dtype: str, most: int) -> None:
    """So many rows at a time that their states take 8 MiB, on sm_90; with float32 x in terms and states of 64 columns
    beside them.
    """
    k, n = 4096, 128_256
    with rowfold.Model("linear | logsumexp", k, n, dtype=dtype, backend="cuda") as model:
        x = torch.ones(16, k, dtype=getattr(torch, dtype), device="cuda")
        args = _lib.ForwardArgs(size=ctypes.sizeof(_lib.ForwardArgs), x=x.data_ptr(), ldx=k)
        args.x_dtype, args.x_memory = _lib.DType[dtype.upper()], _lib.Memory.DEVICE
        model.load_weights(torch.zeros(n, k, dtype=x.dtype, device="cuda"))
        sizes = []
        for batch in (1024, 2048, 8192, 65536, 1 << 20):
            args.batch = batch
            sizes.append(model._open().call_workspace(args))
        hopper = "hopper" in model.explain(8192, "json")["kernel"]
    assert sizes == sorted(sizes)
    assert sizes[-1] <= (most if hopper else most + 32) << 20
    assert sizes[2] == sizes[-1]


@needs_torch_cuda
def test_host_rows_take_what_is_staged() -> None:
    """They come 16 MiB at a time, and so many have room; a few times as many of those on the device."""
    k, n = 4096, 512
    with rowfold.Model("linear | logsumexp", k, n, backend="cuda").load_weights(np.zeros((n, k), np.float32)) as model:
        args = _lib.ForwardArgs(size=ctypes.sizeof(_lib.ForwardArgs), batch=1 << 20, x_memory=_lib.Memory.HOST)
        on_host = model._open().call_workspace(args)
        args.x_memory = _lib.Memory.DEVICE
        on_device = model._open().call_workspace(args)
    assert on_host <= 64 << 20
    assert 2 * on_host < on_device <= 512 << 20


@needs_torch_cuda
def test_workspace_of_a_call() -> None:
    """What a call with x of 16 bits, aligned, needs is less than any; too little is refused for that call alone."""
    batch, k, n = 64, 4096, 4096
    model = rowfold.Model(f"linear({k}, {n}) | logsumexp", dtype="bfloat16", backend="cuda")
    model.load_weights(torch.ones(n, k, dtype=torch.bfloat16, device="cuda"))
    x = torch.ones(batch, k + 8, dtype=torch.bfloat16, device="cuda")
    args = _lib.ForwardArgs(size=ctypes.sizeof(_lib.ForwardArgs), batch=batch, x_memory=_lib.Memory.DEVICE)
    handle = model._open()

    def needed(pointer: int, ldx: int, x_dtype: _lib.DType = _lib.DType.BFLOAT16) -> int:
        args.x, args.ldx, args.x_dtype = pointer, ldx, x_dtype
        return handle.call_workspace(args)

    aligned, shifted = needed(x.data_ptr(), k + 8), needed(x.data_ptr() + 2, k + 8)
    assert needed(0, 0) == shifted == aligned + batch * k * 2
    assert aligned < batch * k
    assert needed(x.data_ptr(), k + 4) == shifted
    assert needed(0, 0, _lib.DType.FLOAT32) <= model.workspace_size(batch)
    assert shifted <= model.workspace_size(batch)
    y = torch.empty(batch, 1, device="cuda")
    workspace = torch.empty(aligned, dtype=torch.uint8, device="cuda")
    needed(x.data_ptr(), k + 8)
    args.y, args.y_memory = y.data_ptr(), _lib.Memory.DEVICE
    args.workspace, args.workspace_size = workspace.data_ptr(), aligned
    handle.library.rf_model_forward_ex(handle.pointer, ctypes.byref(args))
    args.x = x.data_ptr() + 2
    with pytest.raises(rowfold.InvalidArgumentError, match=f"needs {shifted} bytes"):
        handle.library.rf_model_forward_ex(handle.pointer, ctypes.byref(args))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@needs_torch_cuda
def test_the_short_way_on_streams_and_in_graphs(dtype: str) -> None:
    """Calls on two streams beside a graph's replays, all of one shape: each has a workspace of its own."""
    case = _case("linear | logsumexp", 8, 512, 2048, dtype)
    model, x = _on_device(case)
    others = [x * f for f in (1, 2, 3)]
    expected = [_on_device(case)[0](o).clone() for o in others]
    for o in others:
        assert torch.equal(model(o), expected[0]) == (o is others[0])
    graph, captured = torch.cuda.CUDAGraph(), others[2].clone()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        replayed = model(captured)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for _ in range(50):
        with torch.cuda.stream(streams[0]):
            results.append((0, model(others[0])))
        with torch.cuda.stream(streams[2]):
            graph.replay()
        with torch.cuda.stream(streams[1]):
            results.append((1, model(others[1])))
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected[i]) for i, y in results)
    assert torch.equal(replayed, expected[2])
