"""How a teacher with hindsight differs from the policy: numbers in which the known failures of
self-distillation show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from erl_pipeline.config.self_distillation import SelfDistillationConfig

if TYPE_CHECKING:
    import numpy.typing as npt
    from transformers import PreTrainedTokenizerBase

    from storage.tables.teacher_scores import TeacherScores
    from storage.tables.trajectories import Trajectory

_DECILES = 10


def gap_metrics(
    scored: Sequence[tuple[Trajectory, TeacherScores]],
    settings: SelfDistillationConfig,
    class_of: Callable[[int], str],
) -> Mapping[str, float]:
    """How the teacher with hindsight differs from the policy that sampled, in nats a token: the mean gap,
    that of attempts that succeeded and of those that failed, the share of tokens beyond the limit, how much
    of all gaps the hundredth of tokens with the largest have, and the mean gap in each tenth of an attempt.
    Of each class of tokens, `class_of` their ids, the mean gap and its share of the sum of all |gaps|.
    A teacher that knows something finds the tokens of successes more likely than those of failures. Also the
    mean length of attempts, in sampled tokens, the teacher's entropy, and the probability that it gives to
    tokens that are not compared."""
    if not scored:
        return {}
    gaps = []
    for row, each in scored:
        mask = np.asarray(row.response_mask, dtype=bool)
        gaps.append((np.asarray(each.logprobs) - np.asarray(row.behaviour_logprobs))[mask])
    every = np.concatenate(gaps)
    tenth = np.concatenate([np.arange(len(each)) * _DECILES // len(each) for each in gaps])
    sizes = np.sort(np.abs(every))[::-1]
    top = sizes[: max(1, len(sizes) // 100)]
    found = {
        "gap_mean": float(every.mean()),
        "gap_beyond_limit": float((sizes > settings.gap_limit).mean()),
        "gap_of_top_hundredth": float(top.sum() / sizes.sum()) if sizes.sum() else 0.0,
        "scored_length": float(np.mean([len(each) for each in gaps])),
        "teacher_entropy": _mean([each.entropies for _, each in scored]),
    }
    for name, success in (("successes", True), ("failures", False)):
        chosen = [each for each, (row, _) in zip(gaps, scored, strict=True) if row.success is success]
        if chosen:
            found[f"gap_of_{name}"] = _mean(chosen)
    for number in range(_DECILES):
        if (inside := every[tenth == number]).size:
            found[f"gap_of_tenth_{number + 1}"] = float(inside.mean())
    of_ids = [
        np.asarray(row.response_token_ids)[np.asarray(row.response_mask, dtype=bool)] for row, _ in scored
    ]
    ids, place = np.unique(np.concatenate(of_ids), return_inverse=True)
    classes = np.array([class_of(int(each)) for each in ids])[place]
    for name in np.unique(classes):
        inside = every[classes == name]
        found[f"gap_of_{name}"] = float(inside.mean())
        found[f"gap_share_of_{name}"] = float(np.abs(inside).sum() / sizes.sum()) if sizes.sum() else 0.0
    if settings.compared_tokens:
        found["teacher_tail"] = _mean([np.exp(each.tail_logprobs) for _, each in scored])
    if settings.combination == "modulate":
        changed = np.concatenate(
            [each.advantages[np.asarray(row.response_mask) == 1] for row, each in scored]
        )
        found["contrast_selected"] = float((changed != 0).mean())
        found["contrast_mean"] = float(changed.mean())
    return found


def _mean(parts: Sequence[npt.NDArray[Any]]) -> float:
    whole = np.concatenate(parts)
    return float(whole.astype(np.float64).mean()) if len(whole) else 0.0


def token_class(tokenizer: PreTrainedTokenizerBase, token_id: int) -> str:
    """What a token is: `special`, `space`, `words` (letters), `digits`, `punctuation`, or `mixed`."""
    if token_id in tokenizer.all_special_ids:
        return "special"
    text = str(tokenizer.decode([token_id])).strip()
    if not text:
        return "space"
    if text.isalpha():
        return "words"
    if text.isdigit():
        return "digits"
    return "mixed" if any(map(str.isalnum, text)) else "punctuation"
