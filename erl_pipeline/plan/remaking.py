"""What a run makes again: artifacts that are damaged or gone, files that retention has removed, and the state
of an optimizer that was not committed."""

from collections.abc import Callable, Collection, Sequence

from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.plan.repetition import made_since_state, without_state
from erl_pipeline.plan.stage import Listener
from erl_pipeline.policies.checkpoints import lacks_state
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, DamagedArtifact, InputError, PrunedFileError, StateNotKept
from storage.texts import counted


class Remaking:
    """What is known of the artifacts of a plan, and which stages make those that are missed.

    Args:
        store: None for a simulation, in which no artifact is there and every input is.
        makers: gives the stages, outside of the plan, that made artifacts from which the plan begins.
        state_every: the state of the optimizer is committed each so many iterations.
    """

    def __init__(
        self,
        plan: Plan,
        store: ArtifactStore | None,
        listener: Listener,
        makers: Callable[[], Sequence[PlannedStage]],
        state_every: int,
    ) -> None:
        self.nodes = list(plan.nodes)
        self.numbers = {node.artifact_id: at for at, node in reversed(list(enumerate(plan.nodes)))}
        """The stages that make artifacts, by ids."""
        self.planned = len(plan.nodes)
        """How many stages the plan has; those after them belong to another run, or are in the ledger."""
        self.repeated: dict[int, tuple[PlannedStage, ...]] = {}
        """What is computed again before a stage, for the state of the optimizer."""
        self._store = store
        self._listener = listener
        self._makers = makers
        self._without_state = without_state(plan, state_every)
        self._whole: set[str] = set()
        self._absent: set[str] = set()
        self._incomplete: set[str] = set()
        """Artifacts that are computed again for the files that retention has removed."""
        self._completed: set[str] = set()

    def committed(self, number: int) -> Manifest | None:
        """The manifest of a stage's artifact, if it is committed and whole; a damaged one is set aside."""
        node = self.nodes[number]
        if self._store is None or node.artifact_id in self._absent or node.artifact_id in self._incomplete:
            return None
        try:
            manifest = self._store.find(node.artifact_id, node.stage.name)
            if manifest is None:
                self._absent.add(node.artifact_id)
                return None
            with self._store.reading():
                self._store.open_found(manifest)
        except DamagedArtifact as damage:
            self._set_aside(node.artifact_id, damage)
            return None
        return manifest

    def made(self, artifact_id: str) -> None:
        """An artifact is committed."""
        self._whole.add(artifact_id)
        self._absent.discard(artifact_id)
        if artifact_id in self._incomplete:
            self._incomplete.remove(artifact_id)
            self._completed.add(artifact_id)

    def look_again(self, artifact_id: str) -> None:
        """An artifact that was missed may be committed now."""
        self._absent.discard(artifact_id)

    def damaged_inputs(self, number: int, written: Collection[str]) -> set[str]:
        """The inputs of a stage, also those of what is repeated before, that are damaged or gone and have to
        be made again. Raises what opening them raises if no stage makes them.

        Args:
            written: artifacts that are not committed yet, which stages can read.
        """
        again: set[str] = set()
        nodes = [*self.repeated.get(number, ()), self.nodes[number]]
        to_check = [artifact_id for node in nodes for artifact_id in node.recipe.inputs.values()]
        while to_check:
            artifact_id = to_check.pop(0)
            if artifact_id in self._whole or artifact_id in written or self._store is None:
                continue
            try:
                with self._store.reading():
                    manifest = self._store.open(artifact_id).manifest
                self._whole.add(artifact_id)
                if manifest.kind in ("rollouts", "tasks"):  # Their readers also read what they list.
                    to_check += manifest.inputs.values()
            except DamagedArtifact as damage:
                if not self._has_maker(artifact_id):
                    raise
                self._set_aside(artifact_id, damage)
                again.add(artifact_id)
            except InputError:
                if not self._has_maker(artifact_id):
                    raise
                maker = self.nodes[self.numbers[artifact_id]].title
                self._listener.warn(f"{maker} ({artifact_id}) is gone from the store. It is made again.")
                again.add(artifact_id)
        return again

    def complete(self, number: int, gone: PrunedFileError) -> str:
        """The artifact that lacks a file which a stage reads; it has to be computed again.

        Raises the error if no stage makes the artifact, and ConfigError if today's code makes another one.
        """
        artifact_id = gone.artifact_id
        if artifact_id in self._completed:
            raise gone
        self._maker(number, artifact_id, gone)
        if artifact_id not in self._incomplete:
            title = self.nodes[number].title
            self._listener.warn(f"{title} reads a file that is gone: {gone.fact}. It is made again.")
            self._incomplete.add(artifact_id)
            self._whole.discard(artifact_id)
        return artifact_id

    def repeat(self, number: int, gone: StateNotKept) -> None:
        """Have the trainings since the last checkpoint whose optimizer state is committed repeated before a
        stage. Raises as `complete`."""
        if self._store is None:
            raise gone
        stages = made_since_state(
            gone.artifact_id, lambda artifact_id: self._maker(number, artifact_id, gone), self._store.find
        )
        before = self.repeated.get(number, ())
        if [each.artifact_id for each in stages] == [each.artifact_id for each in before]:
            raise gone  # They were repeated, and did not bring it back.
        self.repeated[number] = stages
        self._listener.warn(
            f"{self.nodes[number].title} needs the state of the optimizer: {gone.fact}. "
            f"{counted(len(stages), 'update')} will be repeated from committed rollouts."
        )

    def writes_state(self, node: PlannedStage) -> bool:
        """Whether a stage writes the state of the optimizer, if it makes a checkpoint. One that is made again
        gets the files that it had."""
        if node.stage.output != "checkpoint":
            return True
        there = None if self._store is None else self._store.find(node.artifact_id, node.stage.name)
        return node.artifact_id not in self._without_state if there is None else not lacks_state(there)

    def _has_maker(self, artifact_id: str) -> bool:
        """Whether a stage makes an artifact; those outside of the plan are taken in when one is missed."""
        if artifact_id not in self.numbers and len(self.nodes) == self.planned:
            self.nodes += self._makers()
            for number in range(self.planned, len(self.nodes)):
                self.numbers.setdefault(self.nodes[number].artifact_id, number)
        return artifact_id in self.numbers

    def _maker(self, number: int, artifact_id: str, gone: PrunedFileError) -> PlannedStage:
        """The stage that makes an artifact again for another stage; raises as `complete`."""
        if not self._has_maker(artifact_id):
            raise gone
        maker = self.nodes[self.numbers[artifact_id]]
        if maker.recipe.artifact_id != artifact_id:
            raise ConfigError(
                f"{self.nodes[number].title} reads a file that is gone: {gone.fact}. It cannot be computed "
                "again, because the code or the settings that made it have changed since. Put the earlier "
                "code back, or train from the start with `train --name`, and another name."
            ) from gone
        return maker

    def _set_aside(self, artifact_id: str, damage: DamagedArtifact) -> None:
        self._listener.warn(f"{damage} It is set aside and made again.")
        if self._store is not None:
            self._store.discard_damaged(artifact_id)
        self._absent.add(artifact_id)
