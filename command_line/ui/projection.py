"""Vectors as points in a plane, for a map: their two principal components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DECIMALS = 4
"""Decimals of a point's coordinates: rounded, they are the same on every machine that computes them."""


@dataclass(frozen=True)
class Projection:
    """The points of vectors, [vector, 2], and the shares of the vectors' variance along the two axes."""

    points: npt.NDArray[np.float64]
    shares: tuple[float, float]


def project(vectors: npt.NDArray[np.float32]) -> Projection:
    """The two principal components of vectors, [vector, dimension].

    The sign of an axis makes its largest component positive, so that equal vectors always give equal points.
    An axis without variance gives 0.
    """
    points = np.zeros((len(vectors), 2))
    if len(vectors) < 2:
        return Projection(points, (0.0, 0.0))
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    # The covariance matrix is small, since there are a few hundred dimensions.
    variances, directions = np.linalg.eigh(centred.T @ centred)
    total = float(variances.sum())
    shares = [0.0, 0.0]
    for place, axis in enumerate(directions.T[::-1][:2]):
        variance = max(0.0, float(variances[-1 - place]))
        if variance <= 1e-12 * total or not total:
            continue
        points[:, place] = centred @ (axis * np.sign(axis[np.argmax(np.abs(axis))]))
        shares[place] = variance / total
    # Adding 0 turns -0.0 into 0.0.
    return Projection(np.round(points, DECIMALS) + 0.0, (shares[0], shares[1]))
