"""The interface of models that embed texts for a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Embedder(Protocol):
    """Turns texts into vectors. Equal texts must have equal vectors, whatever else is in the batch."""

    @property
    def model(self) -> str:
        """The name by which a program can load the model again."""
        ...

    @property
    def embedding_model(self) -> str:
        """Name and digest of the weights; if they differ, vectors of two embedders cannot be compared."""
        ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of unit length, shape [text, dimension]."""
        ...
