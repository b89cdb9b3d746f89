"""Which comparisons have opened which test tasks: an event that stays in the store.

Layout: `STORE/test_splits/00000001.json`, `00000002.json`, ..., one sealed document for each opening. Each is
written once, on condition that there is none, and names the seal of the one before it: one that is changed,
or missing between others, is found.
"""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime

from pydantic import ValidationError

from storage.artifacts.manifest import code_version
from storage.artifacts.sealing import Record, read_record, record_bytes
from storage.errors import DamagedRecord
from storage.filesystem import StoreRoot, list_names, open_root, read_bytes, write_new

_FOLDER = "test_splits"


class SplitUse(Record):
    """A comparison, and the test tasks that it evaluates policies on."""

    comparison: str
    """Its name."""
    settings_digest: str
    """Digest of its arms' settings; the same for the same comparison with other seeds."""
    seeds: tuple[int, ...]
    test_tasks: tuple[str, ...]
    """Ids of the artifacts with the tasks."""
    tasks: tuple[str, ...]
    """Digests of the problems of single tasks, sorted. The same ones may stand in several artifacts. (Earlier
    records have digests of whole tasks, which equal none of these; their artifacts are still known.)"""
    shapes: tuple[str, ...] = ()
    """For each of `tasks` a digest that is the same for a turned or mirrored one. (Earlier records have
    none.)"""
    code_digest: str = ""
    """Digest of the code that its arms are trained with. (Earlier records have none.)"""
    baseline: str = ""
    """The arm that the others are compared with. (Earlier records have none.)"""

    def seen_in(self, others: Iterable["SplitUse"]) -> set[str]:
        """Those of its tasks that others have, as they are or turned."""
        tasks, shapes = set[str](), set[str]()
        for each in others:
            tasks.update(each.tasks)
            shapes.update(each.shapes)
        own = zip(self.tasks, self.shapes or self.tasks, strict=True)
        return {task for task, shape in own if task in tasks or shape in shapes}


class Opening(SplitUse):
    """One opening: from then on the comparison's results on these tasks can be known."""

    code_version: str
    opened: datetime


def openings(store_uri: str) -> list[Opening]:
    """All openings in a store, the oldest first.

    Raises DamagedRecord for one that is not as it was written, or if one is missing before the last.
    """
    return _read(open_root(store_uri))[0]


def open_test_split(store_uri: str, use: SplitUse) -> None:
    """Record that a comparison opens test tasks with its seeds, its baseline and its code, unless that is
    recorded; it is on disk when this returns.

    Several processes may record the same comparison at once. Raises what `openings` raises.
    """
    root = open_root(store_uri)
    while True:
        found, previous = _read(root)
        if any(_same(each, use) and set(use.tasks) <= set(each.tasks) for each in found):
            return
        opening = Opening(**use.model_dump(), code_version=code_version(), opened=datetime.now(UTC))
        content = record_bytes({**opening.model_dump(mode="json"), "previous": previous})
        if write_new(root, _path(root, len(found) + 1), content, unique=True):
            return


def opened_before(found: Iterable[Opening], use: SplitUse) -> list[Opening]:
    """Who had opened any of the tasks before this comparison did; before now, if it has not. The first
    opening by each comparison with other settings, and then those by this one with other seeds, another
    baseline, or other code."""
    others: dict[str, Opening] = {}
    own: list[Opening] = []
    for opening in found:
        if not (use.seen_in([opening]) or set(opening.test_tasks) & set(use.test_tasks)):
            continue
        if _same(opening, use):
            break
        if opening.settings_digest == use.settings_digest:
            own.append(opening)
        elif not own:
            others.setdefault(opening.settings_digest, opening)
    return [*others.values(), *own]


def _same(opening: Opening, use: SplitUse) -> bool:
    same_code = opening.code_digest in ("", use.code_digest)
    same_seeds = set(opening.seeds) == set(use.seeds)
    same_arms = opening.settings_digest == use.settings_digest and opening.baseline in ("", use.baseline)
    return same_arms and same_seeds and same_code


def _read(root: StoreRoot) -> tuple[list[Opening], str]:
    """The openings, and the digest of the last document; empty without one."""
    found: list[Opening] = []
    previous = ""
    for number, name in enumerate(list_names(root, root.join(_FOLDER)), start=1):
        path = _path(root, number)
        written = read_bytes(root, path)
        if written is None:
            raise DamagedRecord(f"{path} is missing, and {name} is there; put it back from a copy")
        content = read_record(written, path)
        if content.pop("previous", None) != previous:
            raise DamagedRecord(f"{path} does not follow the one before it; put both back from a copy")
        try:
            found.append(Opening.model_validate(content))
        except ValidationError as error:
            raise DamagedRecord(f"{path} is not the opening of a test split: {error}") from error
        previous = hashlib.sha256(written).hexdigest()
    return found, previous


def _path(root: StoreRoot, number: int) -> str:
    return root.join(_FOLDER, f"{number:08d}.json")
