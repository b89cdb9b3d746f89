"""A store in which a served policy has learned from two users; all that each of them said has one word."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from storage.artifacts.recipe import ArtifactKind, Recipe
from storage.artifacts.store import ArtifactStore
from storage.memory.entries import write_delta
from storage.memory.view import ReflectionMemory
from storage.runs.run import RunStore
from storage.serving.aliases import change_alias
from storage.serving.collected import (
    COLLECT_STAGE,
    CORRECTIONS,
    SERVED,
    SERVED_CORRECTIONS,
    SERVED_TRAJECTORIES,
    ServedCorrection,
    ServedTrajectory,
    traffic_run,
)
from storage.serving.traffic import EpisodeEnd, Feedback, Record, ServedTurn, TrafficLog
from storage.serving.users import digest_of, user_key
from storage.tables.parquet import write_rows
from storage.tables.teacher_scores import TeacherScores, write_teacher_scores
from storage.tables.training import (
    TRAINING_RECORD_FILE,
    TRAINING_RECORD_SCHEMA,
    SftRow,
    write_sft_rows,
    write_training_record,
)
from storage.tables.trajectories import Trajectory, write_trajectories
from tests.embedders import WordEmbedder
from tests.storage.conftest import FIRST, an_entry
from tests.storage.serving.aliases import alias_change

RUN, TENANT = "served", "acme"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECRETS = {"alice": "quokkas", "bob": "numbats"}
TOKENS = {"alice": 7654321, "bob": 1234567}


def user_digest(store_uri: str, run: str, tenant: str, name: str) -> str:
    return digest_of(user_key(store_uri, run), tenant, name)


def turn(user: str, digest: str, number: int) -> ServedTurn:
    said = f"{SECRETS[user]} {number}"
    return ServedTurn(
        turn_id=f"{user}-{number}",
        call_id=f"call-{user}-{number}",
        episode_id=f"episode-{user}",
        tenant="acme",
        user=digest,
        task_type="chat",
        alias="production",
        policy_version="",
        tokenizer_digest="words",
        temperature=1.0,
        after=None,
        context_token_ids=(TOKENS[user], 5),
        sampled_token_ids=(8,),
        logprobs=(-0.5,),
        seed=1,
        finish_reason="stop",
        not_trainable="",
        messages=({"role": "user", "content": said},),
        answer={"role": "assistant", "content": f"you said {said}"},
        notes=f"{SECRETS[user]} are liked",
        memory_version="",
        memory_entry_ids=(),
        arrived=NOON,
        seconds=0.1,
    )


def comment(user: str, digest: str) -> Feedback:
    return Feedback(
        feedback_id=f"feedback-{user}",
        episode_id=f"episode-{user}",
        call_id=None,
        tenant="acme",
        user=digest,
        metric="comment",
        value=f"more {SECRETS[user]}",
        reward=None,
        source="user",
        received=NOON,
    )


@dataclass(frozen=True)
class Served:
    """The store, digests of users, and the artifacts of run `served` by what they are."""

    store: ArtifactStore
    digests: dict[str, str]
    ids: dict[str, str]


def conversation(user: str, name: str, parent: str | None = None, **changes: Any) -> Trajectory:
    said = SECRETS[user]
    return replace(
        FIRST,
        trajectory_id=f"{name}-{user}",
        episode_id=f"episode-{user}",
        parent_trajectory_id=parent,
        role=name,
        prompt_token_ids=(TOKENS[user], 6),
        feedback=f"{said} wanted",
        text=f"about {said}",
        messages=json.dumps([{"role": "user", "content": said}, {"role": "assistant", "content": said}]),
        task_payload=json.dumps({"prompt": said}),
        **changes,
    )


def trained(rows: Iterable[Trajectory]) -> Iterator[dict[str, Any]]:
    for row in rows:
        known = {name: value for name, value in vars(row).items() if name in TRAINING_RECORD_SCHEMA.names}
        told = {"kind": "reinforcement", "weight": 1.0, "steps": 1, "trained_tokens": 2}
        yield dict.fromkeys(TRAINING_RECORD_SCHEMA.names) | known | told


def write_served(folder: Path) -> Served:
    """Segments of two servers; a batch with a row of each user; update 1 trained on both, update 2 on
    that of bob; memory and a dataset of both."""
    uri = str(folder)
    store, runs = ArtifactStore(uri), RunStore(uri)
    run, traffic = runs.create(RUN, {"seed": 0}), runs.create(traffic_run(RUN), {"seed": 0})
    digests = {user: user_digest(uri, RUN, TENANT, user) for user in SECRETS}
    for numbers in ((1, 2), (3,)):
        log = TrafficLog(uri, RUN)
        records: list[Record] = [turn(user, digests[user], each) for each in numbers for user in SECRETS]
        log.append([*records, *(comment(user, digests[user]) for user in SECRETS)])
        log.append(
            [EpisodeEnd(episode_id=f"episode-{user}", tenant="acme", received=NOON) for user in SECRETS]
        )
        log.close()
    ids: dict[str, str] = {}

    def commit(
        name: str,
        kind: ArtifactKind,
        inputs: dict[str, str],
        write: Callable[[Path], object],
        stage: str = "",
        iteration: int = 1,
        **counters: int,
    ) -> str:
        recipe = Recipe(stage or name, 1, {"iteration": iteration}, inputs, 0, kind=kind)
        of = traffic if stage == COLLECT_STAGE else run
        with store.create(recipe, run=of.name, iteration=iteration) as staging:
            write(staging.path)
            staging.commit(counters=counters)
        of.record(iteration, recipe.stage, recipe.artifact_id, kind=kind, reused=False, seconds=1.0)
        ids[name] = recipe.artifact_id
        return ids[name]

    def write_batch(path: Path) -> None:
        write_trajectories(path / "trajectories.parquet", chats)
        rows = [
            ServedTrajectory(
                each.trajectory_id, each.episode_id, digests[user], "acme", "production", (), (), (), ""
            )
            for user, each in zip(SECRETS, chats, strict=True)
        ]
        write_rows(path / SERVED, map(vars, rows), SERVED_TRAJECTORIES)
        corrections = [
            ServedCorrection(f"correction-{user}", f"chat-{user}", "", 1, 0, f"{SECRETS[user]} it is")
            for user in SECRETS
        ]
        write_rows(path / CORRECTIONS, map(vars, corrections), SERVED_CORRECTIONS)

    def write_weights(path: Path, rows: Iterable[Trajectory] = ()) -> None:
        (path / "weights").write_bytes(b"weights")
        write_training_record(path / TRAINING_RECORD_FILE, trained(rows))

    first = commit("first", "checkpoint", {}, lambda path: (path / "weights").write_bytes(b"weights"))
    chats = [conversation(user, "chat", policy_version=first) for user in SECRETS]
    batch = commit("batch", "trajectories", {"checkpoint": first}, write_batch, COLLECT_STAGE)
    thoughts = [conversation(user, "thought", f"chat-{user}", policy_version=first) for user in SECRETS]
    thinking = commit(
        "thinking",
        "trajectories",
        {"batch": batch},
        lambda path: write_trajectories(path / "trajectories.parquet", thoughts),
    )
    notes = [
        an_entry(
            number,
            f"{SECRETS[user]} come up",
            text=f"{SECRETS[user]} are liked",
            task_type=task_type.format(digests[user]),
            source_trajectory_id=f"{source}-{user}",
            feedback=SECRETS[user],
            policy_version=first,
        )
        for number, (user, task_type, source) in enumerate(
            [("alice", "user:{}", "chat"), ("alice", "chat", "thought"), ("bob", "user:{}", "chat")]
        )
    ]
    memory = commit(
        "index_memory",
        "memory",
        {"thinking": thinking},
        lambda path: write_delta(path / "entries.parquet", notes, WordEmbedder()),
    )
    taught = [
        SftRow(
            sft_row_id=f"s-{user}",
            prompt=({"role": "user", "content": SECRETS[user]},),
            completion=({"role": "assistant", "content": SECRETS[user]},),
            input_token_ids=(TOKENS[user], 6),
            loss_mask=(0, 1),
            trajectory_id=f"thought-{user}",
            role="distilled",
            reflection_trajectory_id=None,
            first_trajectory_id=f"chat-{user}",
            memory_entry_ids=(),
            task_id="task",
            task_type="chat",
            episode_id=f"episode-{user}",
            iteration=1,
            policy_version=first,
            weight=1.0,
        )
        for user in SECRETS
    ]
    dataset = commit(
        "dataset",
        "sft_dataset",
        {"thinking": thinking},
        lambda path: write_sft_rows(path / "sft.parquet", taught),
    )
    compared = [
        TeacherScores(
            f"chat-{user}",
            0,
            f"thought-{user}",
            "",
            np.array([-0.5]),
            support_ids=np.array([TOKENS[user], 7]),
        )
        for user in SECRETS
    ]
    # An attempt of somebody else that was scored behind what alice had said.
    compared.append(replace(compared[0], trajectory_id="chat-carl"))
    commit(
        "scores",
        "table",
        {"batch": batch, "thinking": thinking},
        lambda path: write_teacher_scores(path / "teacher_scores.parquet", compared),
    )
    inputs = {"checkpoint": first, "batch": batch, "dataset": dataset}
    update_1 = commit(
        "update_1", "checkpoint", inputs, lambda path: write_weights(path, chats), trained_tokens=100
    )
    update_2 = commit(
        "update_2",
        "checkpoint",
        {"checkpoint": update_1, "batch": batch},
        lambda path: write_weights(path, chats[1:]),
        iteration=2,
        trained_tokens=50,
    )
    for alias, checkpoint in {"production": update_2, "before": first}.items():
        change_alias(uri, RUN, alias_change(checkpoint, alias, run=RUN))
    view = ReflectionMemory(uri, RUN, store, WordEmbedder()).at(memory)
    assert view.count() == len(notes)
    return Served(store, digests, ids)


def files_that_say(folder: Path, user: str) -> list[str]:
    """Every file of a store that holds the word or the token of a user; Parquet is read column by column."""
    found = []
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = path.read_bytes()
        texts = [content]
        if content[:4] == b"PAR1":
            texts.append(json.dumps(pq.read_table(path).to_pylist(), default=str).encode())
        words = (SECRETS[user].encode(), str(TOKENS[user]).encode())
        if any(word in text for text in texts for word in words):
            found.append(str(path.relative_to(folder)))
    return found
