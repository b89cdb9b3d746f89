from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifacts.recipe import Recipe, SharedJson, canonical_json, derive_seed

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def test_canonical_json_sorts_keys_and_has_no_spaces() -> None:
    assert (
        canonical_json({"b": [1, 2.5], "a": {"é": None, "d": True}})
        == '{"a":{"d":true,"é":null},"b":[1,2.5]}'
    )


@pytest.mark.parametrize(
    ("value", "error", "where"),
    [
        ({"a": {"b": {1, 2}}}, TypeError, r"\$\.a\.b: "),
        ({"a": [Path("x")]}, TypeError, r"\$\.a\[0\]: "),
        ({"a": {3: "x"}}, TypeError, r"\$\.a: key 3 is a int"),
        ({"a": float("nan")}, ValueError, r"\$\.a: nan"),
        ({"a": [0.0, float("inf")]}, ValueError, r"\$\.a\[1\]: inf"),
        (b"bytes", TypeError, r"\$: "),
    ],
)
def test_what_json_does_not_have_is_refused_by_name(value: Any, error: type[Exception], where: str) -> None:
    with pytest.raises(error, match=where):
        canonical_json(value)


@given(json_values)
def test_canonical_json_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


@given(st.lists(st.text() | st.integers() | st.booleans() | st.none()))
def test_parts_of_an_id_have_the_same_canonical_json_as_in_a_list(parts: list[Any]) -> None:
    assert canonical_json(tuple(parts)) == canonical_json(parts)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


def test_shared_settings_give_the_same_id() -> None:
    settings: dict[str, Any] = {"b": [1, {"x": None}], "a": "é"}
    alone, shared = (
        Recipe("s", 1, each, {"i": "1"}, 3, code=each) for each in (settings, SharedJson(settings))
    )
    assert alone.artifact_id == shared.artifact_id


def test_artifact_id_is_the_digest_of_the_recipe() -> None:
    recipe = Recipe(
        "evaluate",
        2,
        {"samples": 4, "greedy": True},
        {"checkpoint": "abc"},
        seed=7,
        index={"iteration": 3},
        code={"maze": "f0"},
        kind="evaluation",
    )
    text = (
        '{"code":{"maze":"f0"},"index":{"iteration":3},"inputs":{"checkpoint":"abc"},"kind":"evaluation",'
        '"seed":7,"settings":{"greedy":true,"samples":4},"stage":"evaluate","stage_version":2}'
    )
    assert recipe.artifact_id == hashlib.sha256(text.encode()).hexdigest()[:32]


@pytest.mark.parametrize(
    "other",
    [
        Recipe("evaluation", 2, {"samples": 4}, {"checkpoint": "abc"}, 7),
        Recipe("evaluate", 3, {"samples": 4}, {"checkpoint": "abc"}, 7),
        Recipe("evaluate", 2, {"samples": 5}, {"checkpoint": "abc"}, 7),
        Recipe("evaluate", 2, {"samples": 4}, {"checkpoint": "abd"}, 7),
        Recipe("evaluate", 2, {"samples": 4}, {"checkpoint": "abc"}, 8),
        Recipe("evaluate", 2, {"samples": 4}, {"checkpoint": "abc"}, 7, index={"iteration": 1}),
        Recipe("evaluate", 2, {"samples": 4}, {"checkpoint": "abc"}, 7, code={"maze": "f0"}),
        Recipe("evaluate", 2, {"samples": 4}, {"checkpoint": "abc"}, 7, kind="evaluation"),
    ],
)
def test_any_change_gives_another_id(other: Recipe) -> None:
    assert Recipe("evaluate", 2, {"samples": 4}, {"checkpoint": "abc"}, 7).artifact_id != other.artifact_id


def test_seed_is_63_bits_of_a_digest() -> None:
    expected = int.from_bytes(hashlib.sha256(b'[0,3,"task-1","reflection"]').digest()[:8], "big") >> 1
    assert derive_seed(0, 3, "task-1", "reflection") == expected == 6263388448856105119
    assert derive_seed("1") != derive_seed(1)


@given(st.lists(st.integers() | st.text()))
def test_seeds_fit_a_signed_64_bit_column(parts: list[int | str]) -> None:
    assert 0 <= derive_seed(*parts) < 2**63


def test_ids_do_not_depend_on_the_process() -> None:
    program = (
        "from storage.artifacts.recipe import Recipe, derive_seed\n"
        "config = {name: {name: [name]} for name in {'c', 'a', 'b', 'rate', 'group'}}\n"
        "print(Recipe('s', 1, config, {n: n for n in {'x', 'y', 'z'}}, 0).artifact_id, derive_seed('a', 1))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(printed) == 1
