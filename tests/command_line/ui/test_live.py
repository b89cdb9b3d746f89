"""What the page shows of a running, a finished and a killed run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from command_line.ui.run_pages import planned_stages
from command_line.ui.stored import Stored
from erl_pipeline.plan.plan import PlannedStage
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from tests.command_line.ui.clients import client, main_text
from tests.command_line.ui.stores import trajectories, write_page_store
from tests.training_stores import TrainingStore
from tests.waiting import wait_for


def test_a_run_says_whether_somebody_works_on_it_and_what_comes_next(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    page = client(made.store.uri)
    assert "All 2 iterations are done" in page.get("/runs/one/live").text
    stopped = " ".join(page.get("/runs/two/live").text.split())
    assert "stopped" in stopped
    assert "after 0 of 2 iterations, before evaluate" in stopped
    with made.runs.open("two").lock():
        at_work = page.get("/runs/two/live").text
        assert "at work" in at_work
        assert "process " in at_work
        assert "at work" in main_text(page.get("/").text)
        assert 'data-live="/runs/two/events"' in page.get("/runs/two").text
    assert "data-live" not in page.get("/runs/two").text


def test_the_stream_tells_of_commits_and_of_the_end(tmp_path: Path) -> None:
    made = write_page_store(tmp_path)
    page = client(made.store.uri)
    other = TrainingStore(ArtifactStore(made.store.uri), RunStore(made.store.uri), dict(made.ids))
    told: list[str] = []
    looks = Looks(page)
    with made.runs.open("two").lock():
        listener = threading.Thread(target=lambda: told.append(page.get("/runs/two/events").text))
        listener.start()
        # The page reads the run before the stream looks at it for the first time.
        wait_for("the first look of the stream", lambda: looks() > 1)
        write = trajectories({"trajectory_id": "new"})
        before = looks()
        other.commit("rollout_shard", "trajectories", 1, {"checkpoint": "fine_tune"}, write, run="two")
        wait_for("a look at what was committed", lambda: looks() > before + 1)
    listener.join(timeout=60)
    assert not listener.is_alive()
    events = [line for line in told[0].splitlines() if line.startswith("event: ")]
    assert events[0] == "event: state"
    assert events.count("event: state") == 2
    assert events[-1] == "event: ended"


def test_a_store_that_is_no_folder_is_shown_too_and_says_what_cannot_be_seen(tmp_path: Path) -> None:
    page = client(write_page_store(tmp_path, "memory://page-of-an-object-store").store.uri)
    for path in ("/", "/runs/one", "/runs/one/iterations/1", "/runs/one/rows", "/runs/one/plan"):
        assert page.get(path).status_code == 200, path
    assert "Second attempt" in page.get("/runs/one/iterations/1/episodes/episode").text
    assert "Whether a machine works on it cannot be seen" in page.get("/runs/two").text


def test_a_run_that_ended_where_it_was_asked_to_end_says_how_it_goes_on(tmp_path: Path) -> None:
    """The same command, with `--iterations 1`, has nothing to do."""
    made = write_page_store(tmp_path)
    stored = Stored(made.store.uri)
    run = stored.run("two")
    todo = [node for node in planned_stages(stored, run) if node.place not in run.places]
    of_first = [node for node in todo if node.place.iteration <= 1]
    page = client(made.store.uri)

    def note(node: PlannedStage) -> None:
        ledger = made.run("two")
        kind, stage = node.stage.output, node.stage.name
        ledger.record(node.iteration, stage, 32 * "0", kind=kind, key=node.key, reused=False, seconds=0.0)

    for node in of_first:
        told = " ".join(page.get("/runs/two/live").text.split())
        assert "iterations, before" in told
        assert "The same command goes on." in told
        note(node)
    told = " ".join(page.get("/runs/two/live").text.split())
    assert "after 1 of 2 iterations, where <code>--iterations 1</code> ends a run." in told
    assert "The same command goes on without <code>--iterations</code>, or with more." in told
    note(todo[len(of_first)])
    assert "The same command goes on." in " ".join(page.get("/runs/two/live").text.split())


class Looks:
    """How often the stream has looked at a run."""

    def __init__(self, page: TestClient) -> None:
        self.number = 0
        served: Any = page.app
        stored = served.app.state.stored
        mark = stored.mark

        def counted(name: str) -> object:
            found = mark(name)
            self.number += 1
            return found

        stored.mark = counted

    def __call__(self) -> int:
        return self.number
