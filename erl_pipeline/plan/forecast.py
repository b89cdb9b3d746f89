"""What executing a plan would do: what is reused, what is computed and why, and what that should cost.

The module itself reads no store: `Lookups` says what a store has, and what was at the same places before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Protocol

from erl_pipeline.config.shown import settings_differences
from erl_pipeline.plan.plan import Plan, PlannedStage, StageKey
from storage.artifacts.recipe import Recipe

Verdict = Literal["reused", "computed"]

NEW = "new"
GONE = "its artifact is no longer in the store"
AGAIN = "computed again, as `replay` does"


@dataclass(frozen=True)
class Cost:
    """What an artifact of a stage takes: wall seconds, generated tokens, bytes. A number is None if it is not
    known, or if a stage generates no tokens."""

    seconds: float | None = None
    tokens: float | None = None
    bytes: float | None = None


@dataclass(frozen=True)
class PreviousArtifact:
    """An artifact that is already at the place of a planned stage, in the run that is compared with.

    `differences` are those between its recipe and the planned one, in the terms of the configuration where
    possible; inputs are left out. `inputs` is None if they were not looked at.
    """

    run: str
    artifact_id: str
    differences: tuple[str, ...] = ()
    inputs: Mapping[str, str] | None = None


class Lookups(Protocol):
    """What a forecast asks of a store."""

    def made_by(self, node: PlannedStage) -> str | None:
        """The run that made the artifact of a stage; None if it is not committed."""
        ...

    def earlier(self, node: PlannedStage) -> PreviousArtifact | None:
        """The artifact that was at the place of a stage before; None if there was none."""
        ...

    def cost(self, stage: str) -> Cost:
        """What an artifact of a stage takes."""
        ...


@dataclass(frozen=True)
class Reason:
    """Why a stage is computed. `words` is the reason or, with `maker`, the name of an input that is computed
    again by the stage `maker`, `back` iterations before this one (None: before the first iteration)."""

    words: str
    maker: str = ""
    back: int | None = None

    def maker_in(self, iteration: int | None) -> str:
        """The stage that makes the input, in words; `iteration` is None if they are about several."""
        if self.back is None:
            return self.maker
        if self.back == 0:
            return f"{self.maker} of the same iteration"
        if iteration is not None:
            return f"{self.maker} of iteration {iteration - self.back}"
        return f"{self.maker} of {'the iteration' if self.back == 1 else f'{self.back} iterations'} before"


def reason_texts(reasons: Sequence[Reason], iteration: int | None) -> list[str]:
    """Reasons in words; inputs that are computed again are in one sentence at the end."""
    inputs = [f"{reason.words} ({reason.maker_in(iteration)})" for reason in reasons if reason.maker]
    texts = [reason.words for reason in reasons if not reason.maker]
    if len(inputs) == 1:
        texts.append(f"input {inputs[0]} is computed again")
    elif inputs:
        texts.append(f"inputs {', '.join(inputs[:-1])} and {inputs[-1]} are computed again")
    return texts


@dataclass(frozen=True)
class StageForecast:
    """What becomes of one planned stage.

    `run` is the run whose artifact is reused. `compared` is the run with which the stage was compared to find
    the reasons. In `cost`, all numbers are None if the artifact is reused.
    """

    node: PlannedStage
    verdict: Verdict
    run: str = ""
    reasons: tuple[Reason, ...] = ()
    compared: str = ""
    cost: Cost = Cost()

    @property
    def why(self) -> list[str]:
        """The reasons in words."""
        return reason_texts(self.reasons, self.node.iteration)


@dataclass(frozen=True)
class ForecastRow:
    """One stage in several iterations with the same verdict and reasons. Costs are totals of the row."""

    stage: str
    iterations: tuple[int, ...]
    artifacts: int
    verdict: Verdict
    run: str
    why: tuple[str, ...]
    cost: Cost


@dataclass(frozen=True)
class Forecast:
    """What becomes of every stage of a plan, in the order of the plan."""

    stages: tuple[StageForecast, ...]

    @property
    def reused(self) -> Sequence[StageForecast]:
        """Stages whose artifacts are in the store."""
        return [stage for stage in self.stages if stage.verdict == "reused"]

    @property
    def computed(self) -> Sequence[StageForecast]:
        """Stages that would be computed."""
        return [stage for stage in self.stages if stage.verdict == "computed"]

    @cached_property
    def total(self) -> Cost:
        """Expected cost of all stages that would be computed and whose cost is known."""
        return _total((stage.cost for stage in self.computed), partial=True)

    @property
    def unknown(self) -> list[str]:
        """Stages that would be computed, but whose cost is not known."""
        return list(
            dict.fromkeys(stage.node.stage.name for stage in self.computed if stage.cost.seconds is None)
        )

    def rows(self) -> list[ForecastRow]:
        """The plan for people. Iterations with the same verdict and reasons share a row, so that even a long
        plan stays readable."""
        alike: dict[tuple[object, ...], list[StageForecast]] = {}
        for stage in self.stages:
            key = (
                stage.node.stage.name,
                stage.node.iteration is None,
                stage.verdict,
                stage.run,
                stage.reasons,
            )
            alike.setdefault(key, []).append(stage)
        return [_row(members) for members in alike.values()]


def forecast(plan: Plan, lookups: Lookups, again: Collection[StageKey] = frozenset()) -> Forecast:
    """What executing a plan would do.

    Files are not checked: a damaged artifact counts as present.

    Args:
        again: places that are to be computed even if the store has their artifacts.
    """
    computed: dict[str, PlannedStage] = {}
    found = []
    for node in plan.nodes:
        run = None if node.place in again else lookups.made_by(node)
        if run is not None:
            found.append(StageForecast(node, "reused", run))
            continue
        earlier = None if node.place in again else lookups.earlier(node)
        reasons = (Reason(AGAIN),) if node.place in again else _reasons(plan, node, earlier, computed)
        computed.setdefault(node.artifact_id, node)
        compared = earlier.run if earlier else ""
        found.append(StageForecast(node, "computed", "", reasons, compared, lookups.cost(node.stage.name)))
    return Forecast(tuple(found))


def recipe_differences(old: Recipe, new: Recipe) -> list[str]:
    """The differences in settings, code, version, seed and index, one line each; inputs last, by name."""
    lines = settings_differences(old.settings, new.settings)
    for package in sorted(old.code.keys() | new.code.keys()):
        if old.code.get(package) != new.code.get(package):
            lines.append(f"the code of {package} has changed")
    if old.stage_version != new.stage_version:
        lines.append(f"stage version: {old.stage_version} -> {new.stage_version}")
    if old.seed != new.seed:
        lines.append(f"seed: {old.seed} -> {new.seed}")
    if old.index != new.index:
        lines += settings_differences(old.index, new.index)
    for name in sorted(old.inputs.keys() | new.inputs.keys()):
        if old.inputs.get(name) != new.inputs.get(name):
            lines.append(f"input {name} is a different one")
    return lines


def own_differences(old: Recipe, new: Recipe, changed: Iterable[str] = ()) -> tuple[str, ...]:
    """How a stage's settings, code, version and seed differ; inputs are left out.

    Args:
        changed: how the configurations differ. A recipe also holds values derived from settings; the
            differences are then given in terms of what the user has set.
    """
    said = {_last_key(line): line for line in changed}
    lines = [line for line in recipe_differences(old, new) if not line.startswith("input ")]
    return tuple(dict.fromkeys(said.get(_last_key(line), line) for line in lines))


def iterations_text(iterations: Sequence[int]) -> str:
    """Iterations in few words: `7`, `1..1000`, `5..1000 every 5`, `1, 3, 10..12`; 0 is `start`."""
    if list(iterations) == [0]:
        return "start"
    step = iterations[1] - iterations[0] if len(iterations) > 1 else 1
    even = all(after - before == step for before, after in pairwise(iterations))
    if len(iterations) > 2 and step > 1 and even:
        return f"{iterations[0]}..{iterations[-1]} every {step}"
    spans: list[list[int]] = []
    for iteration in iterations:
        if spans and iteration == spans[-1][1] + 1:
            spans[-1][1] = iteration
        else:
            spans.append([iteration, iteration])
    shown = [f"{first}" if first == last else f"{first}..{last}" for first, last in spans[:_SPANS]]
    return ", ".join(shown) + (f", ... {iterations[-1]}" if len(spans) > _SPANS else "")


_SPANS = 4


def _reasons(
    plan: Plan, node: PlannedStage, earlier: PreviousArtifact | None, computed: Mapping[str, PlannedStage]
) -> tuple[Reason, ...]:
    if earlier is None:
        return (Reason(NEW),)
    if earlier.artifact_id == node.artifact_id:
        return (Reason(GONE),)
    reasons = [Reason(line) for line in earlier.differences]
    for name, artifact_id in node.recipe.inputs.items():
        before = earlier.inputs.get(name) if earlier.inputs is not None else None
        if before == artifact_id:
            continue
        if artifact_id in computed:
            maker = computed[artifact_id]
            back = None
            if maker.iteration is not None and node.iteration is not None:
                back = node.iteration - maker.iteration
            reasons.append(Reason(name, maker.stage.name, back))
        elif earlier.inputs is not None:
            maker_name = plan.by_id[artifact_id].title if artifact_id in plan.by_id else artifact_id[:12]
            reasons.append(Reason(f"input {name} is a different one: {maker_name}"))
    return tuple(_inputs_of_one_stage_once(reasons)) or (Reason("made from other inputs"),)


def _inputs_of_one_stage_once(reasons: Iterable[Reason]) -> list[Reason]:
    """The reasons with only the first of several inputs that one stage makes, such as shards."""
    kept: dict[object, Reason] = {}
    for reason in reasons:
        kept.setdefault((reason.maker, reason.back) if reason.maker else reason, reason)
    return list(kept.values())


def _last_key(line: str) -> str:
    """`group_size: 8 -> 4` of `rollouts.group_size: 8 -> 4`."""
    key, colon, values = line.partition(": ")
    return key.rpartition(".")[2] + colon + values


def _row(members: Sequence[StageForecast]) -> ForecastRow:
    first = members[0]
    iterations = tuple(dict.fromkeys(stage.node.iteration or 0 for stage in members))
    alone = iterations[0] if len(iterations) == 1 else None
    return ForecastRow(
        stage=first.node.stage.name,
        iterations=iterations,
        artifacts=len(members),
        verdict=first.verdict,
        run=first.run,
        why=tuple(reason_texts(first.reasons, alone)),
        cost=_total((stage.cost for stage in members), partial=False),
    )


def _total(costs: Iterable[Cost], *, partial: bool) -> Cost:
    """Sums of costs. A None among the parts makes the sum None; with `partial` it is left out."""
    given = list(costs)

    def added(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known and (partial or len(known) == len(values)) else None

    return Cost(
        seconds=added([cost.seconds for cost in given]),
        tokens=added([cost.tokens for cost in given]),
        bytes=added([cost.bytes for cost in given]),
    )
