"""The planner, to which methods add the stages of a run one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.plan import PlannedStage, StageKey
from erl_pipeline.plan.sources import CodeOwner, Sources
from erl_pipeline.plan.stage import Stage
from storage.artifacts.recipe import Recipe, SharedJson
from storage.errors import ConfigError, InputError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from storage.memory.versions import ForgetRequest

SettingsT = TypeVar("SettingsT", bound=Settings)


def falls_due(iteration: int, every: int | None) -> bool:
    """Whether an iteration is followed by an evaluation, wherever the run ends: see
    `Planner.evaluation_due`."""
    return iteration == 0 or (every is not None and iteration % every == 0)


class Planner:
    """Collects the stages of one configuration. Methods and the functions that plan a run call `add`.

    Args:
        requests: iteration -> the requests to forget made after it.
        recorded: place -> artifact id, to plan a run as it was made: each stage then has its recorded id,
            whatever its recipe would give now.
        partial: a stage that is not recorded has the id that its recipe gives; without it, that is an error.
        external: artifacts that are in the store and that no stage of the plan makes.
        shared: stages of another run that this one takes over unchanged; see `displaced`.
    """

    def __init__(
        self,
        config: RunConfig,
        sources: Sources,
        *,
        requests: Mapping[int, tuple[ForgetRequest, ...]] | None = None,
        recorded: Mapping[StageKey, str] | None = None,
        partial: bool = False,
        external: frozenset[str] = frozenset(),
        shared: Mapping[StageKey, PlannedStage] | None = None,
    ) -> None:
        self.config = config
        self.sources = sources
        self.requests = requests or {}
        self.nodes: list[PlannedStage] = []
        self.displaced: list[tuple[PlannedStage, Recipe]] = []
        """Each shared stage that was asked for, and the recipe that this configuration gives it."""
        self._at: dict[StageKey, str] = {}
        self._recorded = recorded
        self._partial = partial
        self._shared = shared or {}
        # Requests to forget are already committed when a plan contains them.
        self._known = {
            *external,
            *(request.artifact_id for each in self.requests.values() for request in each),
        }
        self._equal: dict[tuple[type, str], Settings] = {}
        self._slices: dict[str, Settings] = {}
        self._dumped: dict[int, tuple[Settings, SharedJson]] = {}
        self._code: dict[tuple[CodeOwner, ...], SharedJson] = {}
        self._locations = sources.locations

    def settings(self, stage: Stage[SettingsT]) -> SettingsT:
        """The settings that a stage reads from this configuration."""
        if stage.name not in self._slices:
            if stage.slice is None:
                raise ConfigError(f"stage {stage.name} takes no settings from a configuration by itself")
            self._slices[stage.name] = stage.slice(self.config, self.sources)
        found = self._slices[stage.name]
        assert isinstance(found, stage.settings)
        return found

    def shared(self, settings: SettingsT) -> SettingsT:
        """One object for all equal settings, for a method that builds them again for each iteration."""
        found = self._equal.setdefault((type(settings), settings.model_dump_json()), settings)
        assert isinstance(found, type(settings))
        return found

    def add(
        self,
        stage: Stage[SettingsT],
        inputs: Mapping[str, str],
        *,
        iteration: int | None,
        settings: SettingsT | None = None,
        seed: int = 0,
        index: Mapping[str, int] | None = None,
        key: str = "",
    ) -> str:
        """Put a stage into the plan; return the id of its artifact, to use as an input of others.

        Args:
            settings: its settings, if the stage does not take them from the configuration itself.
            index: tells apart several artifacts of one stage with the same settings, inputs and seed.
            key: tells apart several stages of one name in one iteration.

        Raises:
            ConfigError: no earlier stage makes one of the inputs, as in a cycle.
            InputError: the run is planned as it was made, and has nothing at this place.
        """
        chosen = self.settings(stage) if settings is None else settings
        node = self._node(stage, chosen, inputs, iteration, seed, index or {}, key)
        if node.place in self._shared:
            shared = self._shared[node.place]
            self.displaced.append((shared, node.recipe))
            return self.take(shared)
        for name, artifact_id in inputs.items():
            if artifact_id not in self._known:
                raise ConfigError(
                    f"{node.title}: its input {name} ({artifact_id or 'none'}) is made by no stage before it"
                )
        return self.take(node)

    def planned(self, stage: Stage[Any] | str, iteration: int) -> str | None:
        """The artifact that a stage, or the stage of a name, makes in an iteration; None if it is not in the
        plan yet.

        A branch also finds what it shares with the run that it comes from.
        """
        return self._at.get(StageKey(iteration, stage if isinstance(stage, str) else stage.name, ""))

    def evaluation_due(self, stage: Stage[Any], iteration: int, *, last: bool, every: int | None) -> bool:
        """Whether an iteration ends with an evaluation; for a run planned as it was made, whether it did.

        Args:
            last: the run ends with this iteration.
            every: iterations between evaluations; None: only before the first and after the last iteration.
        """
        if self._recorded is not None:
            return StageKey(iteration, stage.name, "") in self._recorded
        return last or falls_due(iteration, every)

    def take(self, node: PlannedStage) -> str:
        """Put in a stage of another plan unchanged; return the id of its artifact."""
        self._known.add(node.artifact_id)
        self._at[node.place] = node.artifact_id
        self.nodes.append(node)
        return node.artifact_id

    def _node(
        self,
        stage: Stage[Any],
        settings: Settings,
        inputs: Mapping[str, str],
        iteration: int | None,
        seed: int,
        index: Mapping[str, int],
        key: str,
    ) -> PlannedStage:
        recipe = Recipe(
            stage=stage.name,
            stage_version=stage.version,
            settings=self._dump(settings),
            inputs=inputs,
            seed=seed,
            index=index,
            code=self._fingerprints(stage.code),
            kind=stage.output,
        )
        artifact_id = recipe.artifact_id
        if self._recorded is not None:
            place = StageKey(iteration or 0, stage.name, key)
            if place in self._recorded:
                artifact_id = self._recorded[place]
            elif not self._partial:
                where = "" if iteration is None else f" in iteration {iteration}"
                raise InputError(f"the run has no {f'{stage.name} {key}'.strip()}{where}")
        return PlannedStage(stage, settings, recipe, iteration, key, artifact_id, self._locations)

    def _dump(self, settings: Settings) -> SharedJson:
        """The JSON of settings, made once for each object: all iterations share it."""
        if id(settings) not in self._dumped:
            self._dumped[id(settings)] = settings, SharedJson(settings.model_dump(mode="json"))
        return self._dumped[id(settings)][1]

    def _fingerprints(self, owners: tuple[CodeOwner, ...]) -> SharedJson:
        if owners not in self._code:
            self._code[owners] = SharedJson(
                {
                    package: fingerprint
                    for owner in owners
                    for package, fingerprint in self.sources.code[owner].items()
                }
            )
        return self._code[owners]
