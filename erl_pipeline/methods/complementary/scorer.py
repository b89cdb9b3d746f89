"""The scorer of the variant `weights`, a small network that says from a trajectory's embedding how much it is
worth training on, and the stored trajectories with their newest weights.

A simplified variant that is in no paper; see `WeightsExperienceConfig`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

from erl_pipeline.methods.complementary.settings import SCORES, SCORES_FILE
from erl_pipeline.stages.names import ROLLOUTS, trajectory_files
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.scored import was_scored

_EDGE = 1e-6  # weights are kept this far from 0 and 1, where the cross-entropy has no bound


def scorer_loss(
    weights: torch.Tensor, labels: torch.Tensor, *, loss_weight: float = 0.5, distance_weight: float = 0.1
) -> torch.Tensor:
    """`loss_weight * BCE(w, label) + distance_weight * mean |w - label|`; both `[trajectories]`, in [0, 1].

    Practitioners' guides add it to the actor's loss. Since weights enter that loss without gradient, the two
    losses share no parameters, and each is minimised on its own.
    """
    entropy = torch.nn.functional.binary_cross_entropy(weights.clamp(_EDGE, 1 - _EDGE), labels)
    return loss_weight * entropy + distance_weight * (weights - labels).abs().mean()


def improved(now: float, then: float) -> float:
    """The label of a trajectory: 1 where the policy's own mean log-probability of it has risen, else 0."""
    return 1.0 if now > then else 0.0


class WeightScorer:
    """The network with its optimizer. The same arguments and data give the same weights."""

    def __init__(self, dimension: int, layers: int, width: int, learning_rate: float, seed: int) -> None:
        sizes = [dimension, *[width] * layers]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden = [
                module
                for inputs, outputs in pairwise(sizes)
                for module in (torch.nn.Linear(inputs, outputs), torch.nn.ReLU())
            ]
            self._network = torch.nn.Sequential(*hidden, torch.nn.Linear(width, 1))
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=learning_rate)

    def weights(self, vectors: npt.NDArray[np.float32]) -> list[float]:
        """A weight in (0, 1) of each trajectory. `vectors`: `[trajectories, dimension]`."""
        with torch.no_grad():
            found: list[float] = self._weights(torch.from_numpy(vectors)).tolist()
        return found

    def train(
        self,
        vectors: npt.NDArray[np.float32],
        labels: npt.NDArray[np.float32],
        steps: int,
        *,
        loss_weight: float,
        distance_weight: float,
    ) -> tuple[float, float]:
        """Take `steps` optimizer steps on all trajectories; returns the first and the last loss."""
        inputs, targets = torch.from_numpy(vectors), torch.from_numpy(labels)
        losses = []
        for _ in range(steps):
            loss = scorer_loss(
                self._weights(inputs), targets, loss_weight=loss_weight, distance_weight=distance_weight
            )
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            losses.append(loss.item())
        return losses[0], losses[-1]

    def save(self, path: Path) -> None:
        """Write weights and moments; equal states give equal bytes."""
        tensors = {f"network.{name}": value for name, value in self._network.state_dict().items()}
        for number, state in self._optimizer.state_dict()["state"].items():
            tensors |= {f"moments.{number}.{name}": value for name, value in state.items()}
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)

    def load(self, path: Path) -> None:
        """Continue from saved weights and moments."""
        network: dict[str, torch.Tensor] = {}
        moments: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in load_file(path).items():
            kind, _, rest = name.partition(".")
            if kind == "network":
                network[rest] = value
            else:
                number, _, moment = rest.partition(".")
                moments.setdefault(int(number), {})[moment] = value
        self._network.load_state_dict(network)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})

    def _weights(self, vectors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.sigmoid(self._network(vectors)).squeeze(1)
        return found


_LEAST = 1e-9
"""Trajectories of a smaller weight are drawn with this one."""


@dataclass(frozen=True)
class StoredTrajectories:
    """What is stored, by trajectory: the files of its iteration, the newest iteration first, and its
    weight."""

    files: Mapping[str, tuple[Path, ...]]
    weights: Mapping[str, float]

    def newest(self, count: int) -> list[str]:
        """The `count` ids that were stored last, the newest iteration first."""
        return list(self.files)[:count]

    def files_of(self, trajectory_ids: Sequence[str]) -> list[Path]:
        """The files of the iterations that these are from, the newest first."""
        wanted = set(trajectory_ids)
        return list(dict.fromkeys(path for one, of in self.files.items() if one in wanted for path in of))


def read_stored(store: ArtifactStore, newest: Artifact | None, capacity: int) -> StoredTrajectories:
    """The newest trajectories at the end of a chain of scores, at most `capacity` of them. Those without a
    sampled token and those that were not scored are left out: they cannot be trained on again."""
    import polars as pl

    from erl_pipeline.methods.complementary.tables import EXPERIENCE_SCORES
    from storage.tables.parquet import read_rows
    from storage.tables.trajectories import scan_trajectories

    found: dict[str, tuple[Path, ...]] = {}
    weights: dict[str, float] = {}
    for artifact in _chain(store, newest):
        if len(found) >= capacity:
            break
        for row in read_rows([artifact.path(SCORES_FILE)], EXPERIENCE_SCORES):
            weights.setdefault(row["trajectory_id"], row["weight"])
        files = tuple(trajectory_files(store.open(artifact.manifest.inputs[ROLLOUTS]), store))
        rows = scan_trajectories(files).filter(was_scored(), pl.col("response_mask").list.sum() > 0)
        ids = rows.select("trajectory_id").collect()["trajectory_id"].to_list()
        found |= dict.fromkeys(ids[: capacity - len(found)], files)
    return StoredTrajectories(found, weights)


def drawn_by_weight(weights: Sequence[float], count: int, seed: int) -> list[int]:
    """Indices of at most `count` trajectories, drawn without replacement, in the order of the draws. Each
    draw takes one of those left, with a probability proportional to its weight."""
    stream = random.Random(seed)
    # Efraimidis and Spirakis 2006: the largest keys u^(1/w) are such a sample.
    keys = [(stream.random() ** (1.0 / max(weight, _LEAST)), place) for place, weight in enumerate(weights)]
    return [place for _, place in sorted(keys, key=lambda each: (-each[0], each[1]))[:count]]


def _chain(store: ArtifactStore, newest: Artifact | None) -> Iterator[Artifact]:
    artifact = newest
    while artifact is not None:
        yield artifact
        before: Any = artifact.manifest.inputs.get(SCORES)
        artifact = None if before is None else store.open(before)
