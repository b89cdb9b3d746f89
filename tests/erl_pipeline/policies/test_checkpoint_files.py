"""Whether a checkpoint is there, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import DryRunError

from erl_pipeline.policies.checkpoint_files import require_checkpoint
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
