"""Whose lease it is; `tests/storage/artifacts/test_object_store.py` has leases in a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.filesystem import open_root
from storage.runs import lease
from storage.runs.lease import hold_lease, lease_state


def test_a_copy_of_a_machine_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same scratch folder with the same name, and another boot."""
    root = open_root(f"memory://{tmp_path.name}")
    folder, boot = root.join("lease"), tmp_path / "boot_id"
    boot.write_text("one\n")
    monkeypatch.setattr(lease, "_BOOT", boot)
    with hold_lease(root, folder, lambda state: state.holder):
        assert not lease_state(root, folder).held
        boot.write_text("two\n")
        assert lease_state(root, folder).held
