"""Vectors as points in a plane, for a map: their two principal components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DECIMALS = 4
"""Of a point's coordinates, so that an address names the same points wherever they are computed."""


@dataclass(frozen=True)
class Projection:
    """Points of vectors, [vector, 2], and the share of the vectors' variance along each of the two axes."""

    points: npt.NDArray[np.float64]
    shares: tuple[float, float]


def project(vectors: npt.NDArray[np.float32]) -> Projection:
    """The two principal components of vectors, [vector, dimension].

    An axis points to where its largest component is positive, so that equal vectors always give equal points.
    A direction in which nothing differs gives 0.
    """
    points = np.zeros((len(vectors), 2))
    if len(vectors) < 2:
        return Projection(points, (0.0, 0.0))
    centred = vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)
    # It is small, since dimensions are a few hundred, and has the directions that the vectors have.
    variances, directions = np.linalg.eigh(centred.T @ centred)
    total = float(variances.sum())
    shares = [0.0, 0.0]
    for place, axis in enumerate(directions.T[::-1][:2]):
        variance = max(0.0, float(variances[-1 - place]))
        if variance <= 1e-12 * total or not total:
            continue
        points[:, place] = centred @ (axis * np.sign(axis[np.argmax(np.abs(axis))]))
        shares[place] = variance / total
    # 0 is added, since -0.0 would be written otherwise.
    return Projection(np.round(points, DECIMALS) + 0.0, (shares[0], shares[1]))
