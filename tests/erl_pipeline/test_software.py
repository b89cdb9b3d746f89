from __future__ import annotations

from pathlib import Path

import pytest

from erl_pipeline.software import missing_of_extra


def test_what_an_extra_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "lake_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: lake-world\nVersion: 1.0\nRequires-Dist: not-there\n"
        'Requires-Dist: ice>=2 ; extra == "skating"\nRequires-Dist: pydantic>=1 ; extra == "skating"\n'
        'Requires-Dist: fish ; extra == "fishing"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing_of_extra("lake-world", "skating") == ["ice>=2"]
    assert missing_of_extra("lake-world", "") == []
    assert missing_of_extra("no-such-package", "skating") == []
