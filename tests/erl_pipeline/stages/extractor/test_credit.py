"""Credit of entries, and which requests an update takes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.stages.extractor.credit import (
    BATCHED,
    CreditBatch,
    Sample,
    batch_rows,
    credit_rows,
    earlier_credits,
    gather,
    halves,
    requests_by_id,
    retrieval_entropy,
)
from erl_pipeline.stages.extractor.extractor import batch_advantages
from erl_pipeline.stages.extractor.names import CALLS, CREDIT, CREDITS_FILE, MERGED
from erl_pipeline.stages.extractor.tables import CREDITS
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.training.advantages import training_sequences
from storage.tables.parquet import write_rows
from storage.tables.trajectories import write_trajectories
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.stages.extractor.rows import attempt, played


def credit(entry: str, reward: float, request: str = "") -> dict[str, object]:
    return {
        "entry_id": entry,
        "request_id": request or f"r-{entry}",
        "trajectory_id": "a",
        "iteration": 1,
        "policy_version": "policy-1",
        "reward": reward,
        "free_mean": None,
    }


def test_an_entry_is_credited_with_the_outcome_of_each_attempt_that_it_guided() -> None:
    rows = [
        played(0, "guided", "m-1", success=True),
        played(1, "guided", "m-2", success=False),
        played(2, "free", success=True),
        played(3, "free", success=False),
    ]
    found = list(credit_rows(rows, {"m-1": "r-1", "m-2": "r-2"}))
    assert [(row["entry_id"], row["request_id"], row["reward"]) for row in found] == [
        ("m-1", "r-1", 1.0),
        ("m-2", "r-2", -1.0),
    ]
    assert {row["free_mean"] for row in found} == {0.5}
    assert halves(rows) == {"success_guided": 0.5, "success_free": 0.5, "guided_minus_free": 0.0}


def test_without_free_attempts_there_is_no_mean_of_them() -> None:
    (row,) = credit_rows([played(0, "guided", "m-1", success=True)], {"m-1": "r-1"})
    assert row["free_mean"] is None


def test_credits_of_an_entry_are_averaged_and_compared_with_the_mean_of_the_batch() -> None:
    """+1, +1, -1 have the mean 1/3; together with an entry at -1 the mean of the batch is -1/3, so advantages
    are 2/3 and -2/3."""
    batch = gather(
        [credit("m-1", 1.0), credit("m-1", 1.0), credit("m-1", -1.0), credit("m-2", -1.0)], 2, "entry"
    )
    assert [sample.request_id for sample in batch.samples] == ["r-m-1", "r-m-2"]
    rewards = [sample.reward for sample in batch.samples]
    assert rewards == [pytest.approx(1 / 3), -1.0]
    advantages = batch_advantages(rewards)
    assert advantages == [pytest.approx(2 / 3), pytest.approx(-2 / 3)]


def test_entries_of_one_request_are_samples_of_their_own_or_one_together() -> None:
    credits = [credit("m-1", 1.0, "r"), credit("m-2", -1.0, "r"), credit("m-3", -1.0, "s")]
    assert gather(credits, 2, "entry").samples == (Sample("r", 1.0), Sample("r", -1.0), Sample("s", -1.0))
    assert gather(credits, 2, "request").samples == (Sample("r", 0.0), Sample("s", -1.0))


def test_an_update_waits_for_enough_requests_and_leaves_out_the_oldest() -> None:
    """64 different requests are needed; of 66 the two that were credited longest ago are left out."""
    credits = [credit(f"m-{number}", 1.0) for number in range(63)] * 2
    waiting = gather(credits, 64, "entry")
    assert (waiting.samples, waiting.waiting, waiting.evicted) == ((), 63, 0)
    credits = [credit(f"m-{number}", 1.0) for number in range(66)]
    full = gather([*credits, credit("m-0", -1.0)], 64, "entry")
    ids = [sample.request_id for sample in full.samples]
    assert (len(ids), full.waiting, full.evicted) == (64, 66, 2)
    assert ids[0] == "r-m-3"  # m-1 and m-2 are left out; m-0 was credited again
    assert full.samples[-1] == Sample("r-m-0", 0.0)


def test_halves_of_a_group_are_never_compared_with_each_other() -> None:
    guided = [played(number, "guided", success=bool(bit)) for number, bit in enumerate([1, 1, 0, 1])]
    free = [played(number + 4, "free", success=bool(bit)) for number, bit in enumerate([0, 0, 1, 0])]
    found = [row.advantage for row in training_sequences([*guided, *free], ObjectiveConfig())]
    assert found == pytest.approx([0.5, 0.5, -1.5, 0.5, -0.5, -0.5, 1.5, -0.5], abs=1e-5)
    equal = [played(number, "guided", success=True) for number in range(4)]
    assert [row.advantage for row in training_sequences([*equal, *free], ObjectiveConfig())][:4] == [0.0] * 4
    mean = ObjectiveConfig(advantage_normalization="mean")
    assert [row.advantage for row in training_sequences(guided, mean)] == [0.25, 0.25, -0.75, 0.25]


def test_the_entropy_of_what_is_shown() -> None:
    """(1/2, 1/4, 1/4) has 1.0397 nats, one entry alone none."""
    assert retrieval_entropy(["m-1", "m-1", "m-2", "m-3"]) == pytest.approx(1.0397, abs=1e-4)
    assert retrieval_entropy(["m-1", "m-1"]) == 0.0
    assert retrieval_entropy([]) == 0.0
    assert math.isfinite(retrieval_entropy(["m-1"]))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def link(bench: Bench, number: int, before: str | None, batched: int = 0) -> str:
    """One iteration of the chain: the extractor answered request `r<number>`, and an attempt saw an entry of
    it."""
    request = attempt(number, trajectory_id=f"r{number}", role="extraction")
    calls = bench.commit(
        f"calls-{number}",
        "trajectories",
        lambda folder: write_trajectories(folder / TRAJECTORIES, [request]),
    )
    return bench.commit(
        f"credits-{number}",
        "table",
        lambda folder: write_rows(folder / CREDITS_FILE, [credit(f"m-{number}", 1.0, f"r{number}")], CREDITS),
        inputs={CALLS: calls, **({} if before is None else {CREDIT: before})},
        counters={BATCHED: batched},
    )


def test_credits_wait_until_they_are_in_a_batch(bench: Bench) -> None:
    one = link(bench, 1, None)
    two = link(bench, 2, one, batched=64)
    three = link(bench, 3, two)
    four = link(bench, 4, three)

    def waiting(newest: str) -> list[str]:
        found = earlier_credits(bench.store, bench.store.open(newest))
        return [row["request_id"] for row in found]

    assert (waiting(one), waiting(two), waiting(four)) == (["r1"], [], ["r3", "r4"])
    assert earlier_credits(bench.store, None) == []


def test_a_request_is_found_however_long_ago_it_was(bench: Bench) -> None:
    newest = bench.store.open(link(bench, 2, link(bench, 1, None)))
    merged = attempt(3, trajectory_id="r3", role="merge")
    of_merge = bench.commit(
        "merge", "memory", lambda folder: write_trajectories(folder / TRAJECTORIES, [merged])
    )
    inputs = {CREDIT: newest, MERGED: bench.store.open(of_merge)}
    found = requests_by_id(bench.store, inputs, {"r1", "r3"})
    assert {name: row.trajectory_id for name, row in found.items()} == {"r1": "r1", "r3": "r3"}
    batch = CreditBatch((Sample("r1", 0.5), Sample("r3", -1.0), Sample("r1", -1.0)), 2, 0)
    rows = batch_rows(batch, found, "artifact")
    assert len({row.trajectory_id for row in rows}) == 3
    assert [(row.parent_trajectory_id, row.reward, row.success) for row in rows] == [
        ("r1", 0.5, True),
        ("r3", -1.0, False),
        ("r1", -1.0, False),
    ]
