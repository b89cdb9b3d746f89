"""Digests of users' names."""

import stat
from pathlib import Path

import pytest

from storage.errors import DamagedRecord
from storage.serving.traffic import serving_folder
from tests.storage.serving.traffic_of_users import user_digest


def test_a_name_has_one_digest_in_a_run_and_another_in_another(tmp_path: Path) -> None:
    anna = user_digest(str(tmp_path), "lake", "local", "anna")

    assert anna == user_digest(str(tmp_path), "lake", "local", "anna")
    assert (
        len(
            {
                anna,
                user_digest(str(tmp_path), "lake", "local", "bert"),
                user_digest(str(tmp_path), "pond", "local", "anna"),
            }
        )
        == 3
    )
    assert user_digest(str(tmp_path), "lake", "local", "") == ""
    key = serving_folder(str(tmp_path), "lake") / "user_key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(key.parent.iterdir()) == [key]


def test_a_name_has_another_digest_for_each_tenant(tmp_path: Path) -> None:
    named = [("local", "anna"), ("acme", "anna"), ("beta", "anna"), ("acm", "eanna"), ("local", "acmeanna")]

    assert len({user_digest(str(tmp_path), "lake", *each) for each in named}) == 5


def test_a_key_that_was_cut_is_reported(tmp_path: Path) -> None:
    user_digest(str(tmp_path), "lake", "local", "anna")
    (serving_folder(str(tmp_path), "lake") / "user_key").write_bytes(b"short")

    with pytest.raises(DamagedRecord, match="put it back from a copy"):
        user_digest(str(tmp_path), "lake", "local", "anna")
