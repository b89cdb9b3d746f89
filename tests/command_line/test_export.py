"""`export` on a run that trained all weights and on one that trained an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from erl_pipeline.pipeline.run_state import latest_checkpoint
from erl_pipeline.policies.checkpoints import load_checkpoint
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.conftest import FinishedRun
from tests.command_line.invoke import invoke
from tests.erl_pipeline.pipeline.adapted_runs import config, run, save_base


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base, and a store with a run of one iteration that adapted it."""
    folder = tmp_path_factory.mktemp("export")
    run(config(save_base(folder / "base"), iterations=1), folder / "store")
    return folder


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    return model(input_ids=torch.arange(24).reshape(2, 12)).logits


def test_a_trained_model_is_copied_byte_for_byte(finished: FinishedRun, tmp_path: Path) -> None:
    shown = invoke("export", "small", "--output", tmp_path / "a", "--store", finished.store, "--json").json
    assert (shown["iteration"], shown["exported"]) == (2, "weights")
    folder = ArtifactStore(str(finished.store)).open(shown["checkpoint"]).path("model")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files
    AutoTokenizer.from_pretrained(tmp_path / "a")

    first = invoke(
        "export", "small", "--iteration", "0", "--output", tmp_path / "b", "--store", finished.store, "--json"
    ).json
    assert first["checkpoint"] != shown["checkpoint"]


def test_merged_the_logits_are_those_of_base_and_adapter(adapted: Path, tmp_path: Path) -> None:
    """Within 2e-4: the logits are some units large, and float32 is rounded at other places."""
    store = adapted / "store"
    shown = invoke("export", "adapted", "--output", tmp_path / "m", "--store", store, "--json").json
    assert shown["exported"] == "merged"
    policy = load_checkpoint(ArtifactStore(str(store)), shown["checkpoint"], config(adapted / "base"))
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert (logits(exported) - logits(policy.model)).abs().max() < 2e-4
    base = AutoModelForCausalLM.from_pretrained(adapted / "base")
    assert (logits(exported) - logits(base)).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(tmp_path / "m").chat_template == policy.tokenizer.chat_template


def test_the_adapter_alone_is_what_peft_loads(adapted: Path, tmp_path: Path) -> None:
    store = adapted / "store"
    result = invoke("export", "adapted", "--adapter-only", "--output", tmp_path / "a", "--store", store)
    assert result.output.startswith("Wrote the adapter alone of checkpoint ")
    base = AutoModelForCausalLM.from_pretrained(adapted / "base")
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "a")).eval()
    latest = latest_checkpoint(RunStore(str(store)).open("adapted").stages())
    assert latest is not None
    policy = load_checkpoint(ArtifactStore(str(store)), latest.artifact_id, config(adapted / "base"))
    assert torch.equal(logits(loaded), logits(policy.model))
    assert loaded.peft_config["default"].base_model_name_or_path == str(adapted / "base")


def test_mistakes_end_with_a_message(finished: FinishedRun, adapted: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    for words, problem in (
        (("--output", tmp_path / "full"), "not an empty folder"),
        (("--output", tmp_path / "full" / "note" / "below"), "cannot be written"),
        (("--output", tmp_path / "new", "--iteration", "7"), "no checkpoint of iteration 7"),
        (("--output", tmp_path / "new", "--adapter-only"), "has no adapter"),
    ):
        result = invoke("export", "small", *words, "--store", finished.store)
        assert result.status == 2
        assert problem in result.errors
    result = invoke(
        "export", "adapted", "--iteration", "0", "--adapter-only", "--output", tmp_path / "new", "--store",
        adapted / "store",
    )  # fmt: skip
    assert "it is a whole model" in result.errors
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
