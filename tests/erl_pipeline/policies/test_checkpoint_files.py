"""Whether a checkpoint is there, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import DryRunError
from huggingface_hub.utils._paths import filter_repo_objects

from erl_pipeline.policies.checkpoint_files import require_checkpoint, weights_digest
from storage.errors import InputError


def test_a_folder_needs_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no model checkpoint"):
        require_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    require_checkpoint(tmp_path)


def test_the_hub_is_asked_for_another_name_and_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def answer(name: str, **options: Any) -> None:
        asked.append(options)
        if name == "models/nothere":
            raise DryRunError("no dry run") from OSError("the hub cannot be reached")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    require_checkpoint("someone/model")
    with pytest.raises(InputError, match=r"policy.model models/nothere is neither .*: the hub cannot be re"):
        require_checkpoint("models/nothere")
    assert [each["dry_run"] for each in asked] == [True, True]


def test_a_folder_that_is_missing_is_told_of_without_the_hubs_own_advice() -> None:
    with pytest.raises(InputError) as missing:
        require_checkpoint("models/a/b")
    assert str(missing.value) == (
        "policy.model models/a/b is neither a folder here nor a model on the Hugging Face hub: "
        "models there have names such as OWNER/NAME"
    )


def test_second_copies_of_weights_are_neither_downloaded_nor_part_of_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistral, Llama and gpt-oss have them on the hub."""
    asked: dict[str, Any] = {}

    def download(_name: str, **options: Any) -> str:
        asked.update(options)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    (tmp_path / "model.safetensors").write_text("weights")
    before = weights_digest("someone/model")
    (tmp_path / "consolidated.safetensors").write_text("weights")
    assert weights_digest("someone/model") == before

    there = ["config.json", "model-00001-of-00002.safetensors", "additional_chat_templates/tool_use.jinja"]
    copies = ["consolidated.safetensors", "consolidated-00001.safetensors"]
    copies += ["original/model.safetensors", "original/params.json", "metal/model.safetensors"]
    assert list(filter_repo_objects([*there, *copies], **asked)) == there
