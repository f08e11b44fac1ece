"""Explain speaks on every backend, before and after the weights are there."""

import numpy as np
import pytest
import rowfold

CHAINS = [
    "linear(300, 500) | mul(2) | logsumexp | gelu",
    "linear(300, 500) | sum | max",
    "linear(300, 500) | relu",
    "linear(0, 3) | sum",
]


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("batch", [0, 1, 1024])
def test_explain_needs_no_weights(backend: str, chain: str, batch: int) -> None:
    with rowfold.Model(chain, backend=backend) as model:
        before = model.explain(batch=batch)
        assert backend in before and "linear" in before
        assert model.explain(batch=batch, format="json")
        info = model.info
        weights = np.ones((info.out_features, info.in_features), np.float32)
        model.load_weights(weights)
        assert backend in model.explain(batch=batch)
