# SPDX-License-Identifier: MIT
"""Log-likelihoods of continuations, as evaluation harnesses ask for them, from hidden states and without logits.

    python loglikelihood.py         needs torch and transformers

For each (context, continuation) of token numbers: the sum of the continuation's log-probabilities, and whether greedy
decoding of the context would give it. The model here is a small one of random weights, made from a configuration; its
own logits say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from rowfold.torch import token_logprobs

Request = tuple[Sequence[int], Sequence[int]]


def loglikelihood(
    body: Callable[[torch.Tensor], torch.Tensor], head: torch.nn.Linear, requests: Sequence[Request]
) -> list[tuple[float, bool]]:
    """(log-probability, is_greedy) of each continuation.

    ``body`` makes hidden states (batch, tokens, in_features) of token numbers (batch, tokens). The requests are padded
    on the right, where a causal model does not look; the targets of all but the continuation's places are ignored.
    """
    longest = max(len(context) + len(continuation) for context, continuation in requests)
    ids = torch.zeros(len(requests), longest, dtype=torch.int64)
    targets = torch.full((len(requests), longest - 1), -100)
    for row, (context, continuation) in enumerate(requests):
        both = torch.tensor([*context, *continuation])
        ids[row, : len(both)] = both
        targets[row, len(context) - 1 : len(both) - 1] = both[len(context) :]  # the place before predicts a token
    device = head.weight.device
    with torch.no_grad():
        hidden = body(ids.to(device))[:, :-1]
        scores = token_logprobs(hidden, head.weight, targets.to(device), head.bias, rank=True)
    # The rank is -1 where the target is ignored, and 0 for the greedy choice.
    return list(zip(scores.logprobs.double().sum(-1).tolist(), (scores.rank <= 0).all(-1).tolist()))


def main() -> None:
    """Scores a few continuations by hidden states, and by the model's own logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **sizes)).eval()
    with torch.no_grad():
        greedy = model.generate(torch.tensor([[5, 17, 3]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    requests = [([5, 17, 3], greedy[0, 3:].tolist()), ([5, 17, 3], [10, 20]), ([8], [1, 2, 3, 4, 5])]
    scores = loglikelihood(lambda ids: model.model(ids).last_hidden_state, model.lm_head, requests)
    largest = 0.0
    for (context, continuation), (logprob, is_greedy) in zip(requests, scores):
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1]
        wanted = torch.tensor(list(continuation))
        own = logits.log_softmax(-1).gather(-1, wanted[:, None]).sum().item()
        largest = max(largest, abs(own - logprob))
        print(f"{list(context)} -> {list(continuation)}: {logprob:.4f}, {'greedy' if is_greedy else 'not greedy'}")
        if is_greedy != bool((logits.argmax(-1) == wanted).all()):
            raise SystemExit("the model's own logits say otherwise")
    print(f"largest difference from the model's own log_softmax: {largest:.1e}")


if __name__ == "__main__":
    main()
