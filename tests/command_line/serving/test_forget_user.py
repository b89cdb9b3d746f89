"""`erl-pipeline forget-user`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_line.invoke import invoke
from tests.storage.serving.traffic_of_users import RUN, TENANT, Served, files_that_say, write_served


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return write_served(tmp_path_factory.mktemp("served") / "store")


@pytest.fixture
def store(written: Served, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written.store.uri, tmp_path / "store"))


def test_without_delete_everything_is_named_and_stays(written: Served, store: Path) -> None:
    before = files_that_say(store, "alice")
    shown = invoke("forget-user", RUN, "alice", "--tenant", TENANT, "--store", store)

    assert shown.status == 0
    assert files_that_say(store, "alice") == before
    words = " ".join(shown.output.split())
    first, last = (written.ids[name][:12] for name in ("first", "update_2"))
    assert "2 checkpoints learned from this user, and cannot unlearn:" in words
    assert f"The last one from before: {first} (first, iteration 1, run served)." in words
    assert "2 updates, 0 generated and 150 trained tokens" in words
    assert f"Served now: alias production of run served means {last}, which learned from this user." in words
    assert "alias before" not in words
    assert "Nothing is deleted yet: " in words


def test_with_delete_it_goes_and_the_run_stays_whole(store: Path) -> None:
    found = invoke("forget-user", RUN, "alice", "--tenant", TENANT, "--store", store, "--json").json
    done = invoke("forget-user", RUN, "alice", "--tenant", TENANT, "--store", store, "--delete", "--json")
    again = invoke("forget-user", RUN, "alice", "--tenant", TENANT, "--store", store, "--delete")

    assert (done.status, done.json) == (0, {**found, "deleted": True})
    assert files_that_say(store, "alice") == []
    assert "The store holds nothing that this user said." in again.output
    assert "cannot unlearn" in again.output
    for run, files in ((RUN, 7), (f"{RUN}-traffic", 3)):
        verified = invoke("lineage", "verify", run, "--store", store)
        assert verified.status == 0
        assert "Pruned" not in verified.output
        assert f"a user of a served policy was forgotten: {files} files." in verified.output


def test_a_run_that_was_never_served_has_no_users(store: Path) -> None:
    refused = invoke("forget-user", f"{RUN}-traffic", "alice", "--store", store)

    assert refused.status == 2
    assert "was never served" in refused.errors


def test_a_server_with_tenants_needs_to_know_whose_user_it_is(store: Path) -> None:
    refused = invoke("forget-user", RUN, "alice", "--store", store)
    other = invoke("forget-user", RUN, "alice", "--tenant", "beta", "--store", store)

    assert refused.status == 2
    assert f"Add --tenant; run {RUN} has records of: acme." in " ".join(refused.errors.split())
    assert "It has no record of tenant beta, but of: acme." in " ".join(other.output.split())


def test_nothing_counts_as_deleted_of_a_user_whom_nobody_knows(store: Path) -> None:
    (store / "staging" / "0123456789abcdef").mkdir(parents=True)
    asked = ("forget-user", RUN, "alicia", "--tenant", "acm", "--store", store)
    shown, deleted = (" ".join(invoke(*asked, *more).output.split()) for more in ((), ("--delete",)))
    for said in (shown, deleted):
        assert "The store holds nothing else that this user said." in said
        assert "It has no record of tenant acm, but of: acme." in said
        assert "Deleted." not in said
    assert "may hold what this user said: --delete removes them." in shown
    assert "may hold what this user said: deleted." in deleted


def test_a_name_that_is_no_text_is_a_user_of_whom_nothing_is_there(store: Path) -> None:
    shown = invoke("forget-user", RUN, "\udcff", "--tenant", "acme", "--store", store)
    assert (shown.status, "holds nothing that this user said" in shown.output) == (0, True)
