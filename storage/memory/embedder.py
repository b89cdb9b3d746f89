"""What a memory needs of a model that embeds texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Embedder(Protocol):
    """Turns texts into vectors. Equal texts must have equal vectors, whatever is embedded beside them."""

    @property
    def model(self) -> str:
        """The name by which a program finds the model again."""
        ...

    @property
    def embedding_model(self) -> str:
        """Name and digest of the weights; vectors of two embedders compare where it is equal."""
        ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of unit length, [text, dimension]."""
        ...
