"""An embedder without a model, for tests in which only similarity matters."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DIMENSION = 64


class WordEmbedder:
    """Texts are similar by the words that they share: each word is a direction, and a text is the sum of its
    words."""

    model = "words"
    embedding_model = "words@1"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        sums = np.array([self._sum(text) for text in texts], np.float64).reshape(len(texts), DIMENSION)
        units: npt.NDArray[np.float64] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return units.astype(np.float32)

    def _sum(self, text: str) -> npt.NDArray[np.float64]:
        words = re.findall(r"\w+|[^\w\s]", text.lower()) or [""]
        directions = np.array([_direction(word) * (1.0 if word.isalnum() else 0.3) for word in words])
        total: npt.NDArray[np.float64] = np.sum(directions, axis=0)
        return total


def _direction(word: str) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(DIMENSION)
