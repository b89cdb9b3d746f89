"""The losses and advantages of self-distillation, token by token: divergences between the policy p that is
trained (student) and the distribution q of a policy that knows more (teacher), and the contrast of hints.

A process that only plans imports this module too, so torch is not imported here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    Numbers = npt.NDArray[np.float64]

Divergence = Literal["forward", "reverse", "jsd"]


def divergence(
    student: torch.Tensor, teacher: torch.Tensor, kind: Divergence, beta: float = 0.5
) -> torch.Tensor:
    """The divergence of each token, `[tokens]`, in nats.

    - `forward`: KL(q || p), as SDFT trains (arXiv 2601.19897).
    - `reverse`: KL(p || q), as in SDPO (arXiv 2601.20802).
    - `jsd`: beta KL(q || m) + (1 - beta) KL(p || m) with m = (1 - beta) p + beta q (OPSD, arXiv 2601.18734).
      Near beta 0 and 1 it vanishes, so beta also changes the size of the steps.

    Args:
        student, teacher: `[tokens, events]`, finite log-probabilities in nats of the same events: words of
            the vocabulary, and all other words together. Gradients flow into `student` alone.
    """
    teacher = teacher.detach()
    p, q = student.exp(), teacher.exp()
    if kind == "forward":
        return (q * (teacher - student)).sum(-1)
    if kind == "reverse":
        return (p * (student - teacher)).sum(-1)
    middle = (student + math.log1p(-beta)).logaddexp(teacher + math.log(beta))
    return (beta * q * (teacher - middle) + (1 - beta) * p * (student - middle)).sum(-1)


def sampled_token_loss(logprobs: torch.Tensor, teacher_logprobs: torch.Tensor) -> torch.Tensor:
    """`-sg(log q - log p) log p` of the token that was sampled, `[tokens]`. Its value means nothing; its
    gradient, averaged over tokens that p samples, is that of the reverse divergence (arXiv 2601.20802).

    Both tensors: `[tokens]`, nats; gradients flow into `logprobs` alone.
    """
    return -(teacher_logprobs - logprobs).detach() * logprobs


def contrast(correct: Numbers, wrong: Sequence[Numbers]) -> Numbers:
    """`e = log q(y | correct hint) - log mean_k q(y | wrong hint k)`, in nats, of each token (RLCSD, arXiv
    2606.11709). All arrays: `[tokens]`; at least one wrong hint."""
    found: Numbers = correct - (np.logaddexp.reduce(np.stack(wrong), axis=0) - np.log(len(wrong)))
    return found


def modulation(evidence: Numbers, *, strength: float, temperature: float, limit: float) -> Numbers:
    """`r = clip(strength tanh(e / temperature), -limit, limit)`, what a contrast adds to the advantage
    (RLCSD, where the strength is beta lambda). `[tokens]`."""
    return (strength * np.tanh(evidence / temperature)).clip(-limit, limit)


def modulated_addition(advantage: float, added: Numbers) -> Numbers:
    """`A' - A` with `A' = A + r`, which may reach 0 but not change its sign; an advantage of 0 stays 0
    (RLCSD). `added` is r, `[tokens]`."""
    if advantage == 0.0:
        return np.zeros_like(added)
    return np.maximum(added, -advantage) if advantage > 0 else np.minimum(added, -advantage)
