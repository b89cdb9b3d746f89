"""Checkpoints as folders for other programs, on artifacts that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.adapters import add_fresh_adapter, write_adapter
from erl_pipeline.policies.checkpoints import (
    ANY_TYPE,
    INSTRUCTION,
    LoadedPolicies,
    export_checkpoint,
    read_instructions,
)
from erl_pipeline.policies.pretrained import load_policy
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from tests.random_models import TEMPLATE, WORDS, random_llama

LORA = LoraConfig(rank=2, alpha=6)
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [6, 2, 6, 5, 3]])


class Checkpoints:
    """A store with a whole model and an adapter of it; all weights are random."""

    def __init__(self, folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
        self.store = ArtifactStore(str(folder / "store"))
        self.model_folder = folder / "base"
        self.adapted = random_llama(len(WORDS))
        self.adapted.save_pretrained(self.model_folder)
        tokenizer.save_pretrained(self.model_folder)
        with self.store.create(
            Recipe("bootstrap", 1, {}, {}, 0, kind="checkpoint"), run="r", iteration=None
        ) as staging:
            self.adapted.save_pretrained(staging.path / "model")
            tokenizer.save_pretrained(staging.path / "model")
            self.base_id = staging.commit().manifest.artifact_id
        add_fresh_adapter(self.adapted, LORA, seed=7, base=self.base_id)
        _draw_trainable(self.adapted)
        recipe = Recipe("update_policy", 1, {}, {"base": self.base_id}, 0, kind="checkpoint")
        with self.store.create(recipe, run="r", iteration=1) as staging:
            write_adapter(self.adapted, staging.path / "model")
            self.adapter_id = staging.commit().manifest.artifact_id
        policy = {"type": "pretrained", "model": str(self.model_folder), "lora": LORA.model_dump()}
        self.config = RunConfig.model_validate(
            {"name": "r", "iterations": 1, "environment": "frozen_lake", "policy": policy}
        )


@torch.no_grad()
def _draw_trainable(model: PreTrainedModel) -> None:
    """A fresh adapter changes nothing, so give it weights of the size that a trained adapter has."""
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    found: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return found


@pytest.fixture
def checkpoints(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> Checkpoints:
    return Checkpoints(tmp_path, tokenizer)


def test_a_whole_model_is_copied_byte_for_byte(checkpoints: Checkpoints, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    exported = export_checkpoint(checkpoints.store, checkpoints.config.policy, checkpoints.base_id, output)
    assert exported == "weights"
    stored = checkpoints.store.open(checkpoints.base_id).path("model")
    files = {path.name: path.read_bytes() for path in stored.iterdir()}
    assert {path.name: path.read_bytes() for path in output.iterdir()} == files
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(output)), logits(random_llama(len(WORDS))))


def test_merged_the_logits_are_those_of_base_and_adapter(checkpoints: Checkpoints, tmp_path: Path) -> None:
    """Within 1e-5: the logits are below 10 in size, and merging changes where float32 is rounded."""
    output = tmp_path / "out"
    exported = export_checkpoint(checkpoints.store, checkpoints.config.policy, checkpoints.adapter_id, output)
    assert exported == "merged"
    merged = AutoModelForCausalLM.from_pretrained(output)
    assert (logits(merged) - logits(checkpoints.adapted)).abs().max() < 1e-5
    assert (logits(merged) - logits(random_llama(len(WORDS)))).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(output).chat_template == TEMPLATE


def test_the_adapter_alone_is_what_peft_loads(checkpoints: Checkpoints, tmp_path: Path) -> None:
    output = tmp_path / "out"
    exported = export_checkpoint(
        checkpoints.store, checkpoints.config.policy, checkpoints.adapter_id, output, adapter_only=True
    )
    assert exported == "adapter"
    loaded = PeftModel.from_pretrained(random_llama(len(WORDS)), str(output))
    assert torch.equal(logits(loaded), logits(checkpoints.adapted))
    # Outside the store the base has the name that the run used for it.
    assert loaded.peft_config["default"].base_model_name_or_path == str(checkpoints.model_folder)


def test_a_trainer_that_alone_has_its_state_stays_until_it_is_taken(checkpoints: Checkpoints) -> None:
    policies, policy = LoadedPolicies(), load_policy(checkpoints.model_folder)
    trainer, other = object(), object()
    policies.put("a", policy, ("key", trainer), sole=True)
    policies.put("b", policy, ("key", other))
    policies.forget_trainer()
    assert policies.take_trainer("b", "key") is None
    assert policies.take_trainer("a", "another key") is None
    assert policies.take_trainer("a", "key") is trainer
    assert policies.take_trainer("a", "key") is None


def test_a_whole_model_has_no_adapter_to_write(checkpoints: Checkpoints, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a whole model"):
        export_checkpoint(
            checkpoints.store,
            checkpoints.config.policy,
            checkpoints.base_id,
            tmp_path / "out",
            adapter_only=True,
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ('{"text": "Go up.", "reward": 0.5}', {ANY_TYPE: {"text": "Go up.", "reward": 0.5}}),
        ('{"text": {"text": "Go up."}}', {"text": {"text": "Go up."}}),
    ],
    ids=["of an earlier version", "of a type with that name"],
)
def test_a_checkpoint_of_an_earlier_version_has_its_instruction(
    tmp_path: Path, written: str, found: dict[str, dict[str, object]]
) -> None:
    recipe = Recipe("adopt_instruction", 1, {}, {}, 0, kind="checkpoint")
    with ArtifactStore(str(tmp_path)).create(recipe, run="r", iteration=1) as staging:
        (staging.path / INSTRUCTION).parent.mkdir()
        (staging.path / INSTRUCTION).write_text(written)
        assert read_instructions(staging.commit()) == found
