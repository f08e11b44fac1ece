# SPDX-License-Identifier: MIT
"""The list of CUDA kernels that the tests force, and the program for the sanitizers, as far as they need no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import cuda_kernels
import pytest
import rowfold
import sanitize


def test_kernels_are_those_of_the_table() -> None:
    assert len(cuda_kernels.KERNELS) == len(set(cuda_kernels.KERNELS)) > 4
    assert cuda_kernels.parse("all") == cuda_kernels.KERNELS
    first, *_, last = cuda_kernels.KERNELS
    assert cuda_kernels.parse(f"{last},{first}") == [last, first]
    assert cuda_kernels.parse("") == []
    with pytest.raises(ValueError, match=f"fastest: no CUDA kernel of that name; there are .*{first}"):
        cuda_kernels.parse(f"{first},fastest")


@pytest.mark.parametrize("form", sanitize.FORMS)
def test_what_the_sanitizers_run_is_right_on_a_cpu(form: str) -> None:
    """The questions themselves; what a CPU cannot do is another accuracy than float32's."""
    for chains in (sanitize.CHAINS, sanitize.COLLAPSES):
        for case in sanitize.cases(chains, sanitize.SHAPES[:5], form):
            case.check_results(case.run("reference"), "reference", form)


def test_the_program_says_why_it_does_nothing() -> None:
    backend = next(b for b in rowfold.backends() if b.name == "cuda")
    if backend.available:
        pytest.skip("there is a GPU")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, sanitize.__file__], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout == f"skipped: backend cuda: {backend.reason}\n"
