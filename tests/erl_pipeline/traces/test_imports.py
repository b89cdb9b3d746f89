"""Traces as a dataset of a run, which a warm start trains on, and as entries of a memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.traces.imports import Choice, import_memory, import_sft
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.memory.standalone import StandaloneMemory
from storage.runs.run import RunStore
from storage.tables.training import SftRow, read_sft_rows
from storage.upkeep.verification import verify_run
from tests.embedders import WordEmbedder
from tests.erl_pipeline.runs.small_runs import SMALL, go, ids
from tests.erl_pipeline.traces.files import ANSWER, USER, write
from tests.random_models import save_byte_llama

AGAIN, MORE = {"role": "user", "content": "3 + 3?"}, {"role": "assistant", "content": "6"}
LAST, NINE = {"role": "user", "content": "4 + 5?"}, {"role": "assistant", "content": "9"}
OPEN = Choice(format="openai", source_model="m", accept_unscored=True, terms_checked=True)
SCORED = Choice(format="langfuse", source_model="m", min_reward=0.5, terms_checked=True)


def observation(span: str, *messages: Any) -> dict[str, Any]:
    ids = {"id": span, "trace_id": "t1", "type": "GENERATION", "provided_model_name": "m-1"}
    return {**ids, "input": list(messages[:-1]), "output": messages[-1]}


def score(span: str, value: float, **more: Any) -> dict[str, Any]:
    return {"name": "right", "data_type": "NUMERIC", "value": value, "observation_id": span, **more}


HISTORY = (USER, ANSWER, AGAIN, MORE, LAST, NINE)
THREE = [observation(f"o{turn}", *HISTORY[: 2 * turn]) for turn in (1, 2, 3)]


def rows_of(store: Path, records: list[Any], choice: Choice, name: str = "theirs") -> list[SftRow]:
    file = write(store.parent, *records)
    imported = import_sft(str(store), file, name, choice)
    assert imported.path is not None
    return read_sft_rows([imported.path])


def test_answers_above_the_limit_become_rows_that_name_their_source(tmp_path: Path) -> None:
    """The second of three answers is not above it: the first and the third are two rows, and the prompt of
    the third has the others."""
    scores = [score("o1", 1.0), score("o2", 0.5), score("o3", 0.75)]
    first, last = rows_of(tmp_path / "store", [*THREE, *scores], SCORED)
    assert (first.prompt, first.completion) == ((USER,), (ANSWER,))
    assert (last.prompt, last.completion) == (HISTORY[:5], (NINE,))
    assert (first.source_system, first.source_trace_id, first.source_model) == ("langfuse/1", "t1", "m-1")
    assert (first.source_span_ids, last.source_span_ids) == (("o1",), ("o3",))
    assert first.input_token_ids == first.loss_mask == ()
    store = ArtifactStore(str(tmp_path / "store"))
    run = RunStore(store.uri).open("theirs")
    [entry] = run.stages()
    manifest = store.open(entry.artifact_id).manifest
    assert (manifest.kind, manifest.counters["answers"], manifest.counters["not_above"]) == (
        "sft_dataset",
        2,
        1,
    )
    assert verify_run(store, run).problems == []


def test_answers_that_follow_each_other_are_one_row(tmp_path: Path) -> None:
    taken = SCORED.model_copy(update={"min_reward": None, "accept_unscored": True})
    [row] = rows_of(tmp_path / "store", THREE, taken)
    assert (row.prompt, row.completion) == ((USER,), HISTORY[1:])
    assert row.source_span_ids == ("o1", "o2", "o3")


def test_an_unscored_answer_is_left_out_beside_scored_ones(tmp_path: Path) -> None:
    records = [*THREE, score("o1", 1.0), score("o3", 1.0)]
    assert [row.source_span_ids for row in rows_of(tmp_path / "a", records, SCORED)] == [("o1",), ("o3",)]
    accepting = SCORED.model_copy(update={"accept_unscored": True})
    [row] = rows_of(tmp_path / "b", records, accepting)
    assert row.source_span_ids == ("o1", "o2", "o3")


def test_the_same_file_gives_the_same_artifact(tmp_path: Path) -> None:
    file = write(tmp_path, {"messages": [USER, ANSWER]})
    made = [import_sft(str(tmp_path / store), file, "theirs", OPEN) for store in ("a", "a", "b")]
    assert [each.reused for each in made] == [False, True, False]
    assert len({each.artifact_id for each in made}) == 1
    assert len(RunStore(str(tmp_path / "a")).open("theirs").stages()) == 1
    assert len({each.path.read_bytes() for each in made if each.path}) == 1
    other = OPEN.model_copy(update={"source_model": "n"})
    with pytest.raises(InputError, match="was imported with other options"):
        import_sft(str(tmp_path / "a"), file, "theirs", other)


@pytest.mark.parametrize(
    ("records", "changes", "said"),
    [
        (THREE, {}, "no call has a score; --accept-unscored takes"),
        ([*THREE, score("o1", 1.0)], {"min_reward": None}, "1 call has a score, from 1 to 1; --min-reward"),
        ([*THREE, score("o1", 0.5)], {}, "no answer has a score above 0.5"),
        (THREE, {"terms_checked": False}, "m is no run of this store: its terms say"),
        ([*THREE, "{"], {}, "1 line or span is refused"),
    ],
)
def test_nothing_is_committed_where_something_is_missing(
    records: list[Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = write(tmp_path, *records)
    with pytest.raises(InputError, match=said):
        import_sft(str(tmp_path / "store"), file, "theirs", SCORED.model_copy(update=changes))
    assert not (tmp_path / "store").exists()


def test_what_is_refused_can_be_left_out_and_is_counted(tmp_path: Path) -> None:
    file = write(tmp_path, {"messages": [USER, ANSWER]}, "{", {"messages": [USER]})
    imported = import_sft(str(tmp_path / "store"), file, "theirs", OPEN.model_copy(update={"skip_bad": True}))
    assert (imported.counters["sft_rows"], imported.counters["refused"]) == (1, 2)
    assert [each.partition(":")[0] for each in imported.problems] == ["line 2", "line 3"]


def test_a_warm_start_trains_on_the_answers_of_the_dataset_only(tmp_path: Path) -> None:
    """The third answer alone is taken: two tokens of the byte tokenizer are trained, `9` and the end."""
    base = save_byte_llama(tmp_path / "model", positions=192)
    scores = [score(each["id"], float(each["id"] == "o3")) for each in THREE]
    file = write(tmp_path, *THREE, *scores)
    dataset = import_sft(str(tmp_path / "store"), file, "theirs", SCORED).path
    warm_start = {"type": "messages", "file": str(dataset), "steps": 1, "batch": 1, "held_out": 0.0}
    policy = {"type": "pretrained", "model": str(base), "warm_start": warm_start}
    settings = {**SMALL, "name": "warm", "method": {"type": "erl", "memory": False}, "policy": policy}
    go(RunConfig.model_validate(settings), tmp_path / "store", 0)
    made = ArtifactStore(str(tmp_path / "store")).open(
        ids(tmp_path / "store", "warm")[StageKey(0, "warm_start", "")]
    )
    assert (made.manifest.counters["rows"], made.manifest.counters["trained_tokens"]) == (1, 2)
    assert made.manifest.counters["optimizer_steps"] == 1


def test_comments_become_entries_of_a_memory(tmp_path: Path) -> None:
    comments = [score("o2", 0.0, comment="Show the steps."), score("o1", 1.0, comment="Right.")]
    file = write(tmp_path, *THREE, *comments)
    store = str(tmp_path / "store")
    imported = import_memory(store, file, "comments", SCORED, WordEmbedder())
    again = import_memory(store, file, "comments", SCORED, WordEmbedder())
    assert (imported.artifact_id, imported.reused) == (again.artifact_id, False)
    assert again.reused
    hit = StandaloneMemory(store, "comments", WordEmbedder()).search("3 + 3?", top_k=1)[0]
    assert (hit.entry.text, hit.entry.key_text) == ("Show the steps.", "3 + 3?")
    with pytest.raises(InputError, match="no call has a comment"):
        import_memory(store, write(tmp_path, *THREE), "other", SCORED, WordEmbedder())
