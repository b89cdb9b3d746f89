"""Feedback of a judge: the policy itself on the run's engine, or a model on a real server on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from erl_pipeline.config.distillation import DistilledRoles
from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.engines.chat_server import ChatServer, key_of
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.episodes.context import RoleLimits
from erl_pipeline.episodes.play import (
    BatchSampling,
    ConcurrentSampling,
    EpisodeSetup,
    PlayedEpisodes,
    play_episodes,
)
from erl_pipeline.episodes.roles import JUDGE
from erl_pipeline.stages.training.advantages import training_sequences
from erl_pipeline.stages.training.distillation import (
    DistillationSettings,
    distilled_rows,
)
from storage.errors import ConfigError
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.engines import DownwardBatches, DownwardTurns
from tests.erl_pipeline.episodes.judge_server import JudgeServer, serve
from tests.erl_pipeline.episodes.script import TASK, says, setup


def ask(instructions: str, report: AttemptReport) -> list[Message]:
    return [user_message(f"{report.observation} trace {report.trace} {report.feedback} reflect")]


def judged(model: str | None) -> EpisodeSetup:
    """Episodes whose failed attempts are judged by the policy or by a model on another server."""
    given = setup(ask_judge=ask)
    roles = {**given.limits.by_role, JUDGE: RoleLimits(0.3, 5, model)}
    return replace(given, limits=replace(given.limits, by_role=roles))


class JudgingBatches(DownwardBatches):
    """As a judge the policy says `lost`."""

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        answers = super().generate(requests)
        return [
            says("lost") if "/judge/" in request.conversation else answer
            for request, answer in zip(requests, answers, strict=True)
        ]


def on_server(server: JudgeServer, episodes: int = 1, seconds: float = 5.0) -> PlayedEpisodes:
    chat = ChatServer(server.url, "critic", "secret", seconds, max_in_flight=2)
    given = replace(judged(None), chat_server=chat)
    return play_episodes(given, [TASK], range(episodes), BatchSampling(DownwardBatches()))


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with serve(JudgeServer(answer="lost")) as listening:
        yield listening


def opening(row: Trajectory) -> str:
    content: str = json.loads(row.messages)[0]["content"]
    return content


def test_the_policy_judges_on_the_engine_of_the_run() -> None:
    played = play_episodes(judged("policy"), [TASK], range(2), BatchSampling(JudgingBatches()))
    first, judge, reflection, second = played.rows[:4]

    assert [row.role for row in (first, judge, reflection, second)] == [
        "first_attempt",
        "judge",
        "reflection",
        "second_attempt",
    ]
    # The rules said "fell"; the judge's text is in the rows and in the reflection's prompt instead.
    assert (first.feedback, judge.text, reflection.feedback) == ("lost", "lost", "lost")
    assert judge.feedback == "fell"
    assert opening(judge).endswith("fell reflect")
    assert opening(reflection).endswith("lost memory ? ? ? ? reflect")
    assert (judge.temperature, judge.policy_version, judge.finish_reason) == (0.3, "policy-1", "stop")
    assert judge.parent_trajectory_id == reflection.parent_trajectory_id == first.trajectory_id
    # After the last attempt nothing follows for which feedback would be needed.
    assert second.feedback == "fell"
    assert played.determinism == "bytes"


def test_a_server_judges_by_its_own_model(server: JudgeServer) -> None:
    played = on_server(server)
    first, judge, reflection, _ = played.rows

    [question] = server.questions
    assert (question["model"], question["max_tokens"], question["temperature"]) == ("critic", 5, 0.3)
    assert question["messages"] == [{"role": "user", "content": opening(judge)}]
    assert question["seed"] == judge.seed % 2**31
    assert server.keys == ["Bearer secret"]
    assert (first.feedback, judge.text, reflection.feedback) == ("lost", "lost", "lost")
    assert json.loads(judge.messages)[-1] == {"role": "assistant", "content": "lost"}
    # Its tokens come from another model, and no checkpoint of the store sampled them.
    assert (judge.prompt_token_ids, judge.response_token_ids, judge.policy_version) == ((), (), "")
    assert "secret" not in repr(played.rows)
    assert played.determinism == "approximate"


def test_many_episodes_are_judged_with_either_kind_of_engine(server: JudgeServer) -> None:
    batches = on_server(server, episodes=5).rows
    chat = ChatServer(server.url, "critic", None, 5.0, max_in_flight=2)
    turns = ConcurrentSampling(DownwardTurns(), 3)
    one_by_one = play_episodes(replace(judged(None), chat_server=chat), [TASK], range(5), turns).rows
    assert len(server.questions) == 10
    assert batches == one_by_one


@pytest.mark.parametrize(
    ("answer", "finish_reason", "said"),
    [
        (500, "judge_error", "HTTP 500: no model is loaded"),
        (b"<html>", "judge_error", "no chat completion: <html>"),
        (b'{"choices": []}', "judge_error", 'no chat completion: {"choices": []}'),
        ("...", "ill_formed", "fell"),
    ],
)
def test_a_judge_that_fails_is_data_and_the_rules_stay(
    server: JudgeServer, answer: str | int | bytes, finish_reason: str, said: str
) -> None:
    server.answer = answer
    played = on_server(server)
    first, judge, reflection, second = played.rows
    assert (judge.finish_reason, judge.text, judge.feedback) == (finish_reason, None, said)
    assert (first.feedback, reflection.feedback, second.role) == ("fell", "fell", "second_attempt")
    assert played.counters == ({"judge_errors": 1} if finish_reason == "judge_error" else {})


def test_a_judge_that_hangs_or_is_not_there_is_data_too(server: JudgeServer) -> None:
    server.hangs = True
    played = on_server(server, seconds=0.2)
    assert played.rows[1].finish_reason == "judge_timeout"
    assert played.rows[1].feedback == "no answer within 0.2 seconds"
    assert played.counters == {"judge_timeouts": 1}
    nowhere = on_server(replace(server, url="http://127.0.0.1:9"))
    assert nowhere.rows[1].finish_reason == "judge_error"


def test_what_a_judge_says_is_never_trained(server: JudgeServer) -> None:
    with_judge = play_episodes(judged("policy"), [TASK], range(4), BatchSampling(JudgingBatches())).rows
    rewarded = [replace(row, reward=float(row.sample_index % 2), success=True) for row in with_judge]

    def trained(rows: Sequence[Trajectory]) -> list[tuple[str, float]]:
        return [(each.role, each.advantage) for each in training_sequences(rows, ObjectiveConfig())]

    assert {role for role, _ in trained(rewarded)} == {"first_attempt", "reflection", "second_attempt"}
    assert trained(rewarded) == trained([row for row in rewarded if row.role != JUDGE])
    # Rows without tokens give no sequence either.
    assert len(training_sequences(on_server(server).rows, ObjectiveConfig())) == 3
    roles = DistilledRoles(role="second_attempt", prompt_role="first_attempt", via_role="reflection")
    distilled = DistillationSettings(roles=roles, reward_above=None, max_rows_per_task=None)
    assert {row.trajectory_id for row in distilled_rows(rewarded, distilled)} == {
        row.trajectory_id for row in rewarded if row.role == "second_attempt"
    }


def test_a_key_comes_from_the_environment() -> None:
    assert key_of({"KEY": "secret"}, "KEY", "feedback") == "secret"
    assert key_of({}, None, "feedback") is None
    with pytest.raises(ConfigError, match="feedback: the environment variable KEY is not set"):
        key_of({}, "KEY", "feedback")


def test_the_thoughts_of_a_judge_are_not_its_feedback(server: JudgeServer) -> None:
    server.answer = "<think>\nfell\n</think>\n\nlost"
    first, judge, *_ = on_server(server).rows
    assert (first.feedback, judge.text) == ("lost", "lost")
    assert json.loads(judge.messages)[-1]["content"] == server.answer
