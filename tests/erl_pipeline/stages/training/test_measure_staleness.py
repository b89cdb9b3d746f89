from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.stages.training.measure_staleness import policy_age, require_readable
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from tests.erl_pipeline.episodes.script import row


def test_age_counts_policy_versions_along_the_lineage(tmp_path: Path) -> None:
    """first -> a1 -> a2 -> a3, and a branch a1 -> b1."""
    store = ArtifactStore(str(tmp_path))

    def checkpoint(name: str, parent: str | None) -> str:
        inputs = {} if parent is None else {"checkpoint": parent}
        recipe = Recipe("update_policy", 1, {"name": name}, inputs, 0, kind="checkpoint")
        with store.create(recipe, run="r", iteration=1) as staging:
            staging.commit()
        return recipe.artifact_id

    first = checkpoint("first", None)
    a1 = checkpoint("a1", first)
    a2 = checkpoint("a2", a1)
    a3 = checkpoint("a3", a2)
    b1 = checkpoint("b1", a1)
    stranger = checkpoint("stranger", None)

    assert policy_age(store, a3, a3) == 0
    assert policy_age(store, first, a3) == 3
    assert policy_age(store, a3, b1) == 3  # two up to a1, one down to b1
    assert policy_age(store, stranger, a3) is None
    assert policy_age(store, "f" * 32, a3) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer_digest": "theirs"}, "was tokenized by theirs, and the policy's tokenizer is ours"),
        (
            {"tokenizer_digest": "", "prompt_token_ids": (10,)},
            "has token id 10, and the policy knows ids below 10",
        ),
        (
            {"tokenizer_digest": "ours", "prompt_token_ids": (1,) * 9},
            "has 10 tokens, and the policy reads at most 9",
        ),
    ],
)
def test_rows_that_the_policy_cannot_read_are_refused(change: dict[str, Any], said: str) -> None:
    embeddings = SimpleNamespace(weight=torch.zeros(10, 2))
    policy = cast(
        "LoadedPolicy",
        SimpleNamespace(
            model=SimpleNamespace(get_input_embeddings=lambda: embeddings),
            tokenizer_digest="ours",
            context_length=9,
        ),
    )
    readable = replace(row(-0.5), prompt_token_ids=(9,), tokenizer_digest="ours")
    empty = replace(readable, prompt_token_ids=(), response_token_ids=())
    require_readable([readable, replace(readable, tokenizer_digest=""), empty], policy)
    with pytest.raises(InputError, match=said):
        require_readable([replace(readable, **change)], policy)
