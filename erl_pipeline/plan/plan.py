"""The plan of a run: an immutable graph of stages whose artifact ids are known before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.stage import Stage
from erl_pipeline.policies.checkpoints import BASE, CHECKPOINT
from storage.artifacts.recipe import Recipe

POLICY = "policy"
"""The name of the model that acts; a method may train other models too."""


class StageKey(NamedTuple):
    """Where an artifact belongs in a run: iteration (0: before the first), stage, and a key if a stage makes
    several."""

    iteration: int
    stage: str
    key: str


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    `settings` are those of the recipe, as an object. `artifact_id` is the recipe's id, unless the run is
    known to have made this artifact with another recipe. `locations` says where the files are whose digests
    are in the settings: SHA-256 -> path.
    """

    stage: Stage[Any]
    settings: Settings
    recipe: Recipe
    iteration: int | None
    key: str
    artifact_id: str
    locations: Mapping[str, str] = field(default_factory=dict)

    @property
    def place(self) -> StageKey:
        """Where it belongs in its run."""
        return StageKey(self.iteration or 0, self.stage.name, self.key)

    @property
    def title(self) -> str:
        """Its name in messages."""
        name = f"{self.stage.name} {self.key}".strip()
        return name if self.iteration is None else f"{name} of iteration {self.iteration}"


@dataclass(frozen=True)
class RunState:
    """What one iteration hands to the next, as artifact ids.

    `models` maps a model's name to its checkpoint; `initial` maps it to its first checkpoint, to which the KL
    term refers; `bases` maps it to the weights below its adapter, if it has one. `memories` maps a store of
    experience, such as `memory`, to its version; a store that holds nothing yet is absent.
    """

    tasks: str
    models: Mapping[str, str]
    initial: Mapping[str, str]
    bases: Mapping[str, str] = field(default_factory=dict)
    memories: Mapping[str, str] = field(default_factory=dict)

    def model_inputs(self, name: str) -> dict[str, str]:
        """The inputs by which a stage gets a model: its checkpoint and, with an adapter, the base."""
        base = {BASE: self.bases[name]} if name in self.bases else {}
        return {CHECKPOINT: self.models[name], **base}


@dataclass(frozen=True)
class Plan:
    """All stages of a run, in an order in which inputs come first, and its state after each iteration
    (`states[0]`: before the first)."""

    nodes: tuple[PlannedStage, ...]
    states: tuple[RunState, ...]

    @property
    def iterations(self) -> int:
        """How many iterations the plan has."""
        return len(self.states) - 1

    @cached_property
    def by_id(self) -> Mapping[str, PlannedStage]:
        """Every stage by the id of its artifact; the first one if two have the same id."""
        found: dict[str, PlannedStage] = {}
        for node in self.nodes:
            found.setdefault(node.artifact_id, node)
        return found

    @cached_property
    def by_place(self) -> Mapping[StageKey, PlannedStage]:
        """Every stage by its place in the run."""
        return {node.place: node for node in self.nodes}

    def of_iteration(self, iteration: int) -> Sequence[PlannedStage]:
        """The stages of an iteration; of 0, those before the first."""
        return self._by_iteration.get(iteration, ())

    def through(self, iterations: int) -> Plan:
        """The plan up to the end of an iteration."""
        kept = tuple(node for node in self.nodes if (node.iteration or 0) <= iterations)
        return Plan(kept, self.states[: iterations + 1])

    @cached_property
    def _by_iteration(self) -> Mapping[int, Sequence[PlannedStage]]:
        found: dict[int, list[PlannedStage]] = {}
        for node in self.nodes:
            found.setdefault(node.iteration or 0, []).append(node)
        return found


def stage_names(nodes: Iterable[PlannedStage]) -> list[str]:
    """Names by which people choose a stage, in the order of the plan."""
    return list(dict.fromkeys(node.stage.shown_as for node in nodes))
