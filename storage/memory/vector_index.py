"""The vector index of a LanceDB table: of a memory's entries, or of an environment's pages."""

import math
from typing import Any

_TRAINING_PASSES, _TRAINING_ROWS = 25, 128  # of k-means; rows for each partition


def vector_index_config(rows: int, dimension: int) -> Any:
    """IVF_RQ takes one bit per dimension, so a million entries take 50 MB; the exact vectors of the best
    candidates decide. It needs a multiple of 8 dimensions; for any other number the index is IVF_SQ, with one
    byte per dimension."""
    from lancedb.index import IvfRq, IvfSq

    kind = IvfRq if dimension % 8 == 0 else IvfSq
    return kind(
        distance_type="cosine",
        num_partitions=max(1, math.isqrt(rows)),
        max_iterations=_TRAINING_PASSES,
        sample_rate=_TRAINING_ROWS,
    )
