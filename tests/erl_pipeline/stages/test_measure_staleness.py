from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from erl_pipeline.config.objective import DecoupledCorrection
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.stages.measure_staleness import (
    effective_sample_size,
    policy_age,
    require_readable,
    summarize_weights,
)
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import play

TOKEN = DecoupledCorrection(type="decoupled", cap=2.0)


def row(*behaviour: float) -> Trajectory:
    """One response token for each log-probability of the sampler."""
    tokens = tuple(range(len(behaviour)))
    return replace(
        play(["right a", "right a"])[0][0],
        response_token_ids=tokens,
        response_mask=(1,) * len(tokens),
        behaviour_logprobs=behaviour,
    )


def test_effective_sample_size_is_the_share_of_samples_that_weights_are_worth() -> None:
    assert effective_sample_size(torch.tensor([1.0, 1.0, 1.0])) == 1.0
    assert effective_sample_size(torch.tensor([3.0, 1.0])) == 16 / (2 * 10)
    assert effective_sample_size(torch.tensor([1.0, 0.0, 0.0, 0.0])) == 0.25
    assert effective_sample_size(torch.tensor([0.0, 0.0])) == 0.0


def test_token_weights_are_summed_up_by_hand() -> None:
    """Ratios 4, 1 and 1/2; the first is capped at 2."""
    rows = [row(math.log(0.1), math.log(0.5)), row(math.log(0.4))]
    logprobs = [torch.tensor([math.log(0.4), math.log(0.5)]), torch.tensor([math.log(0.2)])]
    found = summarize_weights(rows, logprobs, TOKEN)
    assert found.tokens == 3
    assert found.effective_sample_size == pytest.approx(5.5**2 / (3 * 17.25))
    assert found.effective_sample_size_capped == pytest.approx(3.5**2 / (3 * 5.25))
    assert found.capped == pytest.approx(1 / 3)
    assert found.weight_mean == pytest.approx(3.5 / 3)
    # k3 of one token: ratio - 1 - log ratio
    assert found.behaviour_kl == pytest.approx(((3 - math.log(4)) + 0 + (-0.5 + math.log(2))) / 3)


def test_at_sequence_level_a_sequence_is_one_sample() -> None:
    """Products 4 * 1 = 4 and 1/2; masked above 2."""
    correction = DecoupledCorrection(type="decoupled", level="sequence", mode="mask", cap=2.0)
    rows = [row(math.log(0.1), math.log(0.5)), row(math.log(0.4))]
    logprobs = [torch.tensor([math.log(0.4), math.log(0.5)]), torch.tensor([math.log(0.2)])]
    found = summarize_weights(rows, logprobs, correction)
    assert found.effective_sample_size == pytest.approx(4.5**2 / (2 * 16.25))
    assert found.effective_sample_size_capped == pytest.approx(0.5)
    assert (found.capped, found.weight_mean) == (0.5, pytest.approx(0.25))


def test_nothing_to_train_has_no_weights() -> None:
    assert summarize_weights([], [], TOKEN).tokens == 0


def test_age_counts_policy_versions_along_the_lineage(tmp_path: Path) -> None:
    """first -> a1 -> a2 -> a3, and a branch a1 -> b1."""
    store = ArtifactStore(str(tmp_path))

    def checkpoint(name: str, parent: str | None) -> str:
        inputs = {} if parent is None else {"checkpoint": parent}
        recipe = Recipe("update_policy", 1, {"name": name}, inputs, 0)
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
def test_rows_that_the_policy_cannot_read_are_refused(change: dict[str, object], said: str) -> None:
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
    require_readable([readable, replace(readable, tokenizer_digest="")], policy)
    with pytest.raises(InputError, match=said):
        require_readable([replace(readable, **change)], policy)  # type: ignore[arg-type]
