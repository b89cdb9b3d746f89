"""Committing what stages have written, beside the stages that come next."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import can_pass, pause
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Draft, Uncommitted
from storage.filesystem import NotOnDisk

MOST_CHECKPOINTS = 2
"""How many checkpoints may be written and not committed: a kill loses the work for them."""
_MOST_KNOWN = 64
"""How many committed artifacts workers are told of, so that they need not hash the files."""


@dataclass(frozen=True)
class Commit:
    """An artifact that is written. `number` is that of its stage in the plan, `seconds` what it took."""

    number: int
    seconds: float
    manifest: Manifest
    is_placed: bool
    """Whether its files are where the artifact will be, so that other stages can read them."""


class Commits:
    """Commits artifacts one after the other, in the order in which they were written, in a thread.

    A stage is begun after its inputs are written, so no artifact is committed before its inputs. After a
    commit has failed nothing more is committed.

    Args:
        background_bytes: smaller artifacts are committed at once, unless another one waits for its commit.
        stopped: whether the run was asked to stop. A commit that failed is then tried again at once, the last
            time. One whose files could not be flushed is never tried again: its stage must write them anew.
    """

    def __init__(self, store: ArtifactStore, background_bytes: int, stopped: Callable[[], bool]) -> None:
        self._store = store
        self._background_bytes = background_bytes
        self._stopped = stopped
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit")
        self._error: BaseException | None = None
        self._begun: dict[int, Uncommitted] = {}
        self._waiting: dict[Future[Manifest], Commit] = {}
        self._known: OrderedDict[str, Manifest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Future[Manifest]]:
        """The commits that are not taken yet, in their order."""
        return iter(self._waiting)

    @property
    def written(self) -> dict[str, Manifest]:
        """The artifacts that are written and not committed, by their ids."""
        return {commit.manifest.artifact_id: commit.manifest for commit in self._waiting.values()}

    @property
    def expected(self) -> tuple[Manifest, ...]:
        """What a worker can read without hashing it."""
        return (*self._known.values(), *self.placed.values())

    @property
    def placed(self) -> dict[str, Manifest]:
        """Those of the written artifacts that other stages can read."""
        return {
            commit.manifest.artifact_id: commit.manifest
            for commit in self._waiting.values()
            if commit.is_placed
        }

    def begin(self, number: int) -> Path:
        """A folder for the files of a stage. Raises StoreError when the store cannot be written."""
        begun = self._begun[number] = self._store.begin()
        return begun.path

    def discard(self, number: int) -> None:
        """The stage has failed: remove what it wrote."""
        if number in self._begun:
            self._begun.pop(number).close()

    def add(self, number: int, node: PlannedStage, written: Draft, seconds: float) -> Future[Manifest]:
        """Commit what a stage has written, after all that was written before."""
        is_placed, is_first = self._begun[number].place(written.manifest), not self._waiting
        begun, commit = self._begun.pop(number), Commit(number, seconds, written.manifest, is_placed)
        future = self._thread.submit(self._commit, begun, written, node.stage.retry_seconds)
        self._waiting[future] = commit
        if is_first and sum(entry.bytes for entry in written.manifest.files) < self._background_bytes:
            wait([future])
        return future

    def take(self, future: Future[Manifest]) -> tuple[Commit, BaseException | None]:
        """A commit that has ended, and its error."""
        commit = self._waiting.pop(future)
        error = future.exception()
        if error is None and commit.is_placed:
            manifest = future.result()
            self._known[manifest.artifact_id] = manifest
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return commit, error

    def close(self) -> None:
        """End the thread; every stage has ended, and every commit is taken."""
        for number in list(self._begun):
            self.discard(number)
        self._thread.shutdown()

    def _commit(self, begun: Uncommitted, written: Draft, delays: tuple[float, ...]) -> Manifest:
        try:
            if self._error is not None:
                raise self._error
            left = list(delays)
            while True:
                try:
                    artifact = begun.commit(written)
                except Exception as error:
                    is_lost = isinstance(error, NotOnDisk)
                    if is_lost or not left or self._stopped() or not can_pass(error):
                        self._error = error
                        raise
                    pause(left.pop(0), self._stopped)
                else:
                    self._store.remember(artifact)
                    return artifact.manifest
        finally:
            begun.close()
