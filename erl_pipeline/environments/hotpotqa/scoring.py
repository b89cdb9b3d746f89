"""How an answer is scored: exact match and F1, as HotpotQA's official evaluation computes them.

Source: `hotpot_evaluate_v1.py` of github.com/hotpotqa/hotpot (Yang et al. 2018, arXiv 1809.09600).
"""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong as a whole: another answer shares nothing with them."""


def normalise(answer: str) -> str:
    """Lower case, without punctuation and articles, words with one space between them.

    Where nothing would be left of an answer, such as the letter A, it keeps its articles and punctuation: an
    answer without words must not equal it. The official evaluation has no such rule.
    """
    lower = answer.lower()
    return " ".join(_ARTICLES.sub(" ", lower.translate(_NO_PUNCTUATION)).split()) or " ".join(lower.split())


def exact_match(answer: str, gold: str) -> bool:
    """Whether both are the same after normalisation."""
    return normalise(answer) == normalise(gold)


def f1_score(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words, from 0 to 1."""
    given, right = normalise(answer), normalise(gold)
    if given != right and (given in _WHOLE or right in _WHOLE):
        return 0.0
    words, wanted = given.split(), right.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
