# SPDX-License-Identifier: MIT
"""Each recipe of doc/recipes.md is run as it stands, and its `y` compared with float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pages
import pytest

PREAMBLE, *_ = pages.blocks("doc/recipes.md", "python")
SECTIONS = pages.text("doc/recipes.md").split("\n## ")[1:]
RECIPES = {section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in SECTIONS}
ROWS, FEATURES, COLUMNS = 7, 5, 40


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    single = {name: rng.normal(size=(COLUMNS, FEATURES)).astype(np.float32) for name in ("W", "keys")}
    masses = rng.random(COLUMNS)
    return {
        "x": rng.normal(size=(ROWS, FEATURES)),
        "b": rng.normal(size=COLUMNS).astype(np.float32),
        "bits": (rng.normal(size=(COLUMNS, FEATURES)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "points": rng.normal(size=(COLUMNS, FEATURES)),
        "means": rng.normal(size=(COLUMNS, FEATURES)),
        "variances": rng.random((COLUMNS, FEATURES)) + 0.2,
        "weights": masses / masses.sum(),
        "masses": masses,
        "g": rng.normal(size=COLUMNS),
        "targets": np.array([3, 0, COLUMNS - 1, -100, 17, 17, 5]),
        "temperatures": np.linspace(0.5, 2, ROWS).astype(np.float32),
        **single,
    }


def logsumexp(v: np.ndarray) -> np.ndarray:
    return np.logaddexp.reduce(v, axis=1)


def squares(v: dict[str, Any]) -> np.ndarray:
    return np.square(v["x"][:, None] - v["points"]).sum(2)


def logits(v: dict[str, Any]) -> np.ndarray:
    return v["x"] @ v["W"].astype(np.float64).T + v["b"]


def scores(v: dict[str, Any]) -> np.ndarray:
    return v["x"] @ v["keys"].astype(np.float64).T


def mixture(v: dict[str, Any]) -> np.ndarray:
    apart = np.square(v["x"][:, None] - v["means"]) / v["variances"] + np.log(2 * np.pi * v["variances"])
    return logsumexp(np.log(v["weights"]) - apart.sum(2) / 2)


def density(v: dict[str, Any]) -> np.ndarray:
    h = 0.7
    return logsumexp(-squares(v) / (2 * h**2)) - np.log(COLUMNS * (h * np.sqrt(2 * np.pi)) ** FEATURES)


def head(v: dict[str, Any]) -> np.ndarray:
    weight = (v["bits"].astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return logsumexp(v["x"] @ weight.T)


def logprobs(v: dict[str, Any]) -> np.ndarray:
    return logits(v) - logsumexp(logits(v))[:, None]


def logprob(v: dict[str, Any]) -> np.ndarray:
    targets = v["targets"]
    return np.where(targets == -100, 0, logprobs(v)[np.arange(ROWS), np.maximum(targets, 0)])


EXPECTED = {
    "Energy score of a classifier": lambda v: -2 * logsumexp(logits(v) / 2),
    "Log-probability of a target": logprob,
    "Entropy of a classifier": lambda v: -(np.exp(logprobs(v)) * logprobs(v)).sum(1),
    "A temperature for each row": lambda v: logsumexp(logits(v) / v["temperatures"].astype(np.float64)[:, None]),
    "The next token, how likely it is, and how sure the model was": lambda v: logprobs(v).max(1),
    "Gaussian kernel density": density,
    "Gaussian mixture with diagonal covariances": mixture,
    "A half-step of Sinkhorn": lambda v: -0.5 * logsumexp((v["g"] - squares(v)) / 0.5 + np.log(v["masses"])),
    "Contrastive denominator": lambda v: logsumexp(scores(v) / 0.07),
    "logsumexp over shards": lambda v: logsumexp(logits(v)),
    "Largest inner product": lambda v: scores(v).max(1),
    "Distance to the nearest point": lambda v: np.sqrt(squares(v).min(1)),
    "Largest cosine": lambda v: (scores(v) / np.linalg.norm(v["keys"], axis=1)).max(1) / np.linalg.norm(v["x"], axis=1),
    "Length of the row of logits": lambda v: np.linalg.norm(logits(v), axis=1),
    "A bfloat16 head with float32 results": head,
}


# Columns, which are right or wrong.
COLUMN = {
    "The next token, how likely it is, and how sure the model was": ("token", lambda v: logits(v).argmax(1)),
    "Largest inner product": ("which", lambda v: scores(v).argmax(1)),
}


def test_every_recipe_has_an_answer() -> None:
    assert list(RECIPES) == list(EXPECTED)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name: str) -> None:
    (recipe,) = RECIPES[name]
    double = 'dtype="float64"' in recipe
    values = inputs()
    expected = EXPECTED[name](values | {"x": values["x"] if double else np.float64(np.float32(values["x"]))})
    scope = values | {"x": values["x"] if double else values["x"].astype(np.float32)}
    exec(compile(PREAMBLE + recipe, f"doc/recipes.md: {name}", "exec"), scope)
    y = np.asarray(scope["y"])
    assert y.dtype == (np.float64 if double else np.float32)
    np.testing.assert_allclose(y.reshape(-1), expected, rtol=1e-12 if double else 3e-6)
    if name in COLUMN:
        result, column = COLUMN[name]
        np.testing.assert_array_equal(scope[result], column(values))
