"""The scorer of the variant `weights`: a small network that says from a trajectory's embedding how much it is
worth training on. A simplified variant that is in no paper; see `WeightsExperienceConfig`."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file

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
