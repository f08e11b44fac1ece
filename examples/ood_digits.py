# SPDX-License-Identifier: MIT
"""Which images are of a kind the classifier never saw? The energy score, on scikit-learn's bundled digits.

A linear classifier learns the digits 0 to 7. Its energy -logsumexp(W x + b) is low where some class speaks up and high
where none does, so it tells the unknown 8 and 9 from the known digits, better than the largest softmax probability
(Liu et al., Energy-based Out-of-distribution Detection, 2020).

    pip install scikit-learn matplotlib
    python ood_digits.py energy.png
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import rowfold
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

Array = np.ndarray[Any, Any]
UNKNOWN = (8, 9)


def main() -> None:
    """Trains the head, scores known and unknown digits with rowfold, and draws both histograms."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("picture", nargs="?", help="where to draw the histograms, such as energy.png")
    picture = arguments.parse_args().picture

    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    strange = np.isin(labels, UNKNOWN)
    train, test, train_labels, test_labels = train_test_split(
        pixels[~strange], labels[~strange], test_size=0.4, random_state=0
    )
    head = LogisticRegression(max_iter=2000).fit(train, train_labels)
    print(f"accuracy on {len(test)} known digits: {head.score(test, test_labels):.3f}")

    weight, bias = head.coef_.astype(np.float32), head.intercept_.astype(np.float32)
    with rowfold.Model("linear | logsumexp | neg", weight.shape[1], weight.shape[0]) as energy:
        energy.load_weights(weight, bias)
        known, unknown = energy(test)[:, 0], energy(pixels[strange])[:, 0]

    truth = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    doubt = 1 - head.predict_proba(np.r_[test, pixels[strange]]).max(axis=1)
    print(f"AUROC of the energy:              {roc_auc_score(truth, np.r_[known, unknown]):.3f}")
    print(f"AUROC of the largest probability: {roc_auc_score(truth, doubt):.3f}")
    if picture:
        draw(known, unknown, picture)


def draw(known: Array, unknown: Array, picture: str) -> None:
    """Both histograms of the energy."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained", dpi=110)
    axes = figure.add_subplot()
    bins = np.linspace(min(known.min(), unknown.min()), max(known.max(), unknown.max()), 41).tolist()
    axes.hist(known, bins, density=True, alpha=0.7, color="#0072B2", label="0 to 7, as in training")
    axes.hist(unknown, bins, density=True, alpha=0.7, color="#D55E00", label="8 and 9, never seen")
    axes.set_xlabel("energy, -logsumexp of the logits")
    axes.set_ylabel("density")
    axes.legend(frameon=False)
    figure.savefig(picture)
    print(f"drawn: {picture}")


if __name__ == "__main__":
    main()
