"""Identity of artifacts, and seeds: digests of what an artifact is made from, or of what a seed is for."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from json.encoder import encode_basestring
from typing import Any, Literal

ID_LENGTH = 32
"""Hex characters of an id: 128 bits of a SHA-256."""


def canonical_json(value: Any) -> str:
    """The canonical text of a JSON value: sorted keys, no spaces; lists and tuples are both arrays.

    Raises:
        TypeError: a value or key that JSON does not have (a set, a Path, a number as key); says where it is.
        ValueError: a number that is not finite; says where it is.
    """
    if type(value) is tuple and _PLAIN.issuperset(map(type, value)):
        # Ids of millions of rows: the encoder takes six times as long for so little.
        texts = [encode_basestring(each) if type(each) is str else str(each) for each in value]
        return f"[{','.join(texts)}]"
    require_json(value)
    return _ENCODER.encode(value)


def digest(value: Any) -> str:
    """An id for a JSON value: the first 128 bits of its SHA-256, in hex."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()[:ID_LENGTH]


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**63), derived from its use, such as (run seed, iteration, task, attempt, phase)."""
    hashed = hashlib.sha256(canonical_json(parts).encode("utf-8")).digest()
    return int.from_bytes(hashed[:8], "big") >> 1


ArtifactKind = Literal[
    "checkpoint",
    "tasks",
    "environment_files",
    "trajectories",
    "rollouts",
    "memory",
    "experience",
    "replay",
    "selection",
    "sft_dataset",
    "evaluation",
    "request",
    "qualification",
    "table",
]
"""What an artifact is, whichever stage made it. `rollouts` lists artifacts of kind `trajectories`, which are
its inputs; `tasks` has as an input the `environment_files` that its tasks are opened with, if any;
`checkpoint` holds a policy; `memory` is a memory version; `experience` is a version of what can be replayed,
`replay` is what one iteration replays, `selection` is which tasks it draws; `request` records what a user
asked for; `qualification` says what an examination of an environment found; `table` is everything else."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines an artifact's bytes.

    `settings` is the slice of the configuration that the stage reads, `inputs` maps a name to the id of
    an input artifact, `index` says which of several artifacts of its stage it is (such as iteration and
    shard), `code` maps a package that users edit to the fingerprint of its sources. `stage_version` changes
    whenever the stage's own code would give other bytes.
    """

    stage: str
    stage_version: int
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    seed: int
    index: Mapping[str, int] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    kind: ArtifactKind = "table"

    @cached_property
    def artifact_id(self) -> str:
        """Same recipe, same id; one changed setting, another id. See `canonical_json` for what it raises."""
        parts = {
            "code": self.code,
            "index": self.index,
            "inputs": self.inputs,
            "kind": self.kind,
            "seed": self.seed,
            "settings": self.settings,
            "stage": self.stage,
            "stage_version": self.stage_version,
        }
        # The canonical JSON of the whole, joined from its parts for speed: a plan has thousands of recipes.
        text = ",".join(f'"{name}":{_text(value, name)}' for name, value in parts.items())
        return hashlib.sha256(f"{{{text}}}".encode()).hexdigest()[:ID_LENGTH]


class SharedJson(dict[str, Any]):
    """A JSON object that many recipes share; its canonical text is computed once. It must not be changed."""

    @cached_property
    def text(self) -> str:
        """Its canonical JSON."""
        return canonical_json(dict(self))


def _text(value: Any, name: str) -> str:
    if isinstance(value, SharedJson):
        return value.text
    require_json(value, f"$.{name}")
    return _ENCODER.encode(value)


_EXACT = (str, int, bool, type(None))
_PLAIN = frozenset((str, int))
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def require_json(value: Any, where: str = "$") -> None:
    """Raise as `canonical_json` does if `value` is not a JSON value; `where` is its place in a larger one."""
    # A look at the type alone is faster, and most values are of these types.
    is_list = type(value) is tuple or type(value) is list
    if type(value) is dict or (not is_list and isinstance(value, Mapping)):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"{where}: key {key!r} is a {type(key).__name__}; only str keys have canonical JSON"
                )
            if type(item) not in _EXACT:
                require_json(item, f"{where}.{key}")
    elif isinstance(value, _EXACT):
        return
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} has no canonical JSON; use a finite number or null")
    elif is_list or (isinstance(value, Sequence) and not isinstance(value, bytes | bytearray)):
        for index, item in enumerate(value):
            if type(item) not in _EXACT:
                require_json(item, f"{where}[{index}]")
    else:
        raise TypeError(
            f"{where}: {value!r} is a {type(value).__name__}, which has no canonical JSON; "
            "use null, bool, int, float, str, list or dict"
        )
