# SPDX-License-Identifier: MIT
"""Gaussian kernel density estimation as a scikit-learn estimator: one fused operation, no matrix of distances.

    python examples/kernel_density.py

The log-density of x under n kernels of bandwidth h at the points c is, up to what depends on x alone,

    logsumexp over c of (x . c / h^2 - |c|^2 / (2 h^2))

a linear layer with the points as its weights, and a logsumexp of each row. The estimator passes scikit-learn's
check_estimator, so it works in pipelines, grid searches and processes of joblib's.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import rowfold
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.neighbors import KernelDensity
from sklearn.utils.validation import check_is_fitted, validate_data


class FusedKernelDensity(DensityMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Log-densities as sklearn.neighbors.KernelDensity has them for the Gaussian kernel, exact.

    Parameters
    ----------
    bandwidth
        The standard deviation of a kernel, above 0.
    threads
        CPU threads of one call; None for all cores.

    """

    def __init__(self, bandwidth: float = 1.0, threads: int | None = None) -> None:
        self.bandwidth = bandwidth
        self.threads = threads

    def fit(self, X: Any, y: Any = None) -> FusedKernelDensity:
        """Takes the points (n, features), one kernel each."""
        X = validate_data(self, X, dtype=np.float64)
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth is {self.bandwidth!r}; expected a number above 0")
        # Distances do not change when all points move; near 0 they are computed more exactly.
        self.center_ = X.mean(axis=0)
        points = (X - self.center_) / self.bandwidth
        bias = -0.5 * (points**2).sum(axis=1)
        model = rowfold.Model("linear | logsumexp", dtype="float64", threads=self.threads)
        self.model_ = model.load_weights(points, bias, keep=True)  # keep: for clones, pickles and other processes
        return self

    def score_samples(self, X: Any) -> np.ndarray[Any, Any]:
        """The logarithm of the density at each row of X."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        x = (X - self.center_) / self.bandwidth
        count, features = self.model_.info.out_features, x.shape[1]
        constant = np.log(count) + features * np.log(np.sqrt(2 * np.pi) * self.bandwidth)
        densities: np.ndarray[Any, Any] = self.model_(x, keepdims=False) - 0.5 * (x**2).sum(axis=1) - constant
        return densities

    def score(self, X: Any, y: Any = None) -> float:
        """The logarithm of the density of all rows together."""
        return float(self.score_samples(X).sum())


def main() -> None:
    """Compares both with the definition, on random points."""
    rng = np.random.default_rng(0)
    points, queries = rng.normal(size=(4000, 16)), rng.normal(size=(1000, 16))
    fused = FusedKernelDensity(bandwidth=0.5).fit(points)
    tree = KernelDensity(bandwidth=0.5).fit(points)
    times, results = {}, {}
    for name, estimator in (("rowfold", fused), ("scikit-learn", tree)):
        estimator.score_samples(queries[:10])
        start = time.perf_counter()
        results[name] = estimator.score_samples(queries)
        times[name] = time.perf_counter() - start
    exponents = -0.5 * cdist(queries, points, "sqeuclidean") / 0.5**2
    exact = logsumexp(exponents, axis=1) - np.log(len(points)) - 16 * np.log(np.sqrt(2 * np.pi) * 0.5)
    print(f"log-densities of {len(queries)} rows under {len(points)} kernels in {points.shape[1]} dimensions")
    for name, seconds in times.items():
        error = np.abs(results[name] - exact).max()
        print(f"{name:13s}: {seconds * 1e3:8.1f} ms, largest error {error:.1e}")


if __name__ == "__main__":
    main()
