"""Identity of artifacts and seeds: both are digests of what something is made from."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ID_LENGTH = 32
"""Hex characters of an id: 128 bits of a SHA-256."""


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces; lists and tuples are both arrays.

    Raises:
        TypeError: a value or key that JSON does not have (a set, a Path, a number as key); names where.
        ValueError: a number that is not finite; names where.
    """
    _require_json(value, "$")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """An id for a JSON value: the first 128 bits of its SHA-256, in hex."""
    return hashlib.sha256(canonical_json(value).encode("utf-8")).hexdigest()[:ID_LENGTH]


def derive_seed(*parts: str | int) -> int:
    """A seed in [0, 2**63) from what it is for, such as (run seed, iteration, task, attempt, phase)."""
    hashed = hashlib.sha256(canonical_json(parts).encode("utf-8")).digest()
    return int.from_bytes(hashed[:8], "big") >> 1


@dataclass(frozen=True)
class Recipe:
    """Everything that an artifact's bytes follow from.

    `config` is the slice of the configuration that the stage reads, `inputs` maps a name to the id of
    an input artifact, `stage_version` changes whenever the stage's code would give other bytes.
    """

    stage: str
    stage_version: int
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    seed: int

    @property
    def artifact_id(self) -> str:
        """Same recipe, same id; one changed setting, another id. See `canonical_json` for what it raises."""
        return digest(
            {
                "stage": self.stage,
                "stage_version": self.stage_version,
                "config": self.config,
                "inputs": self.inputs,
                "seed": self.seed,
            }
        )


def _require_json(value: Any, where: str) -> None:
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}: {value} has no canonical JSON; use a finite number or null")
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"{where}: key {key!r} is a {type(key).__name__}; only str keys have canonical JSON"
                )
            _require_json(item, f"{where}.{key}")
        return
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for index, item in enumerate(value):
            _require_json(item, f"{where}[{index}]")
        return
    raise TypeError(
        f"{where}: {value!r} is a {type(value).__name__}, which has no canonical JSON; "
        "use null, bool, int, float, str, list or dict"
    )
