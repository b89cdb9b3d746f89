"""Playing episodes with a checkpoint: what rollouts and evaluation have in common."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.memory import RetrievalSettings
from erl_pipeline.config.plugins import as_in_recipes, plugins, with_operational
from erl_pipeline.config.rollouts import Failed, SamplingConfig
from erl_pipeline.engines.interface import EngineCall, EnginePlugin, OpenedEngine, SampledModel
from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes.ahead import end_episodes_ahead, episodes_ahead
from erl_pipeline.episodes.roles import JUDGE
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.policies.checkpoints import WeightsSettings, weights_settings
from erl_pipeline.stages.memory import opened_memory
from erl_pipeline.stages.names import AGENT_CALLS, MEMORY, TASKS
from erl_pipeline.stages.rollouts.counts import count_rollouts, success_rates
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint
from erl_pipeline.stages.tasks.environment_stages import with_built_files
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity
from erl_pipeline.trainers.interface import make_room
from storage.tables.sequences import FURTHER_SEQUENCES

if TYPE_CHECKING:
    from erl_pipeline.config.prompts import JudgeFeedback
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.engines.chat_server import ChatServer
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol, Retrieve, RoleLimits
    from erl_pipeline.episodes.play import (
        BatchSampling,
        ConcurrentSampling,
        EpisodeSetup,
        PlayedEpisodes,
    )
    from storage.artifacts.artifact import Artifact
    from storage.artifacts.manifest import Determinism
    from storage.tables.trajectories import Trajectory


class PlaySettings(Settings):
    """What episodes depend on, besides the checkpoint, the tasks and the memory."""

    episode: SerializeAsAny[PluginSettings]
    """The method's settings of episodes, with its type."""
    retrieval: RetrievalSettings | None
    """How a memory is searched. What it keeps is decided in the memory version, which is an input."""
    environment: SerializeAsAny[PluginSettings]
    sampling: SamplingConfig
    success_threshold: float
    step_seconds: float
    failed: Failed
    retries: int
    engine: SerializeAsAny[PluginSettings]
    weights: WeightsSettings


def play_settings(config: RunConfig) -> PlaySettings:
    method = plugins("methods")[config.method.type].value
    return PlaySettings(
        episode=method.episode_settings(config.method),
        retrieval=config.retrieval,
        environment=environment_identity(config),
        sampling=config.sampling,
        success_threshold=config.rollouts.success_threshold,
        step_seconds=config.rollouts.step_seconds,
        failed=config.rollouts.failed,
        retries=config.rollouts.retries,
        engine=as_in_recipes("engines", config.engine),
        weights=weights_settings(config),
    )


@dataclass(frozen=True)
class EpisodeOverride:
    """Episodes that a stage defines itself, instead of those of the method."""

    protocol: EpisodeProtocol
    by_role: Mapping[str, RoleLimits]


def write_beside_attempts(folder: Path, plays: Iterable[PlayedEpisodes]) -> dict[str, int]:
    """Write what agents' attempts have beside their first sequences: further ones, and calls. Returns the
    rows of each file; of what there is none there is no file."""
    from storage.tables.agent_calls import write_agent_calls
    from storage.tables.trajectories import write_trajectories

    plays, written = list(plays), {}
    if further := [row for played in plays for row in played.further]:
        written[FURTHER_SEQUENCES] = write_trajectories(folder / FURTHER_SEQUENCES, further)
    if calls := [call for played in plays for call in played.calls]:
        written[AGENT_CALLS] = write_agent_calls(folder / AGENT_CALLS, calls)
    return written


def play_with_checkpoint(
    call: StageCall[Any],
    settings: PlaySettings,
    tasks: Sequence[Task],
    samples: range | Sequence[range],
    *,
    iteration: int,
    run_seed: int,
    temperature: float | None = None,
    first_only: bool = False,
    with_memory: bool = True,
    own: EpisodeOverride | None = None,
    must_fit: Sequence[Task] = (),
    following: Mapping[str, tuple[Sequence[Task], Sequence[range]]] = MappingProxyType({}),
) -> PlayedEpisodes:
    """One episode for each task and sample index, with the checkpoint among the stage's inputs.

    Args:
        samples: sample indices: one range for all tasks, or one for each task.
        temperature: of all roles, in place of the settings'; 0 always takes the most probable token.
        first_only: an episode is its first attempt.
        with_memory: whether to retrieve from the memory among the stage's inputs, where there is one.
        own: episodes in place of the method's; `temperature` and `first_only` then have no effect.
        must_fit: tasks whose first prompts must leave room in the policy's context; checked before anything
            is sampled.
        following: tasks and samples of the artifacts for which this worker is asked next. Their episodes
            begin on places of the engine that these leave free, if it has many and samples on between stages.

    Raises what `play_episodes` and `require_room` of `erl_pipeline.episodes.play` raise.
    """
    from erl_pipeline.episodes import play
    from erl_pipeline.episodes.context import EpisodeLimits, Provenance
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.episodes.play import require_room

    policy = sampled_checkpoint(call, settings.weights, POLICY)
    environment = plugins("environments")[settings.environment.type].value
    environment = with_built_files(environment, call.inputs.get(TASKS), call.resources)
    method = plugins("methods")[settings.episode.type].value
    by_role = method.role_limits(settings.episode, settings.sampling) if own is None else own.by_role
    if temperature is not None and own is None:
        by_role = {role: replace(each, temperature=temperature) for role, each in by_role.items()}
    memory = call.inputs.get(MEMORY) if with_memory else None
    chat = ChatTokenizer(policy.tokenizer)
    setup = play.EpisodeSetup(
        plugin=environment,
        settings=environment.episodes.for_template(settings.environment, chat.knows_tools),
        protocol=own.protocol
        if own is not None
        else _protocol(settings, first_only=first_only, retrieval=memory is not None),
        chat=chat,
        limits=EpisodeLimits(
            context_length=policy.context_length,
            end_token_ids=policy.end_token_ids,
            success_threshold=settings.success_threshold,
            step_seconds=settings.step_seconds,
            by_role=by_role,
            retries=settings.retries if settings.failed == "retry" else 0,
            failures_are_zero=settings.failed == "zero",
        ),
        provenance=Provenance(
            recipe_id=call.artifact_id,
            iteration=iteration,
            policy_versions={POLICY: policy.model.checkpoint_id},
            tokenizer_digest=policy.tokenizer_digest,
            memory_version="" if memory is None else memory.manifest.artifact_id,
            run_seed=run_seed,
        ),
        withhold=settings.retrieval.withhold if settings.retrieval is not None else 0.0,
        instructions=policy.instructions,
        chat_server=(
            None if first_only or own is not None else _chat_server(method.chat_server(settings.episode))
        ),
    )
    require_room(setup, must_fit)
    progress = _EpisodeProgress(call)
    opened = opened_engine(call, settings.engine, policy.model, progress.count_tokens)
    sampling = _sampling(opened, progress)
    retrieve = _retrieve(call, settings, memory)

    def of_shard(artifact_id: str) -> play.ShardEpisodes:
        if artifact_id == call.artifact_id:
            return play.ShardEpisodes(setup, tasks, samples)
        # Ids and counts are those of the other artifact.
        provenance = replace(setup.provenance, recipe_id=artifact_id)
        other = replace(setup, chat=ChatTokenizer(policy.tokenizer), provenance=provenance)
        return play.ShardEpisodes(other, *following[artifact_id])

    if _plays_ahead(opened, setup) and isinstance(sampling, play.ConcurrentSampling):
        played = episodes_ahead(call.resources).play(
            call.artifact_id,
            of_shard,
            following,
            sampling,
            retrieve,
            progress.count_episode,
            call.progress.stop,
        )
    else:
        played = play.play_episodes(
            setup,
            tasks,
            samples,
            sampling,
            retrieve,
            on_episode=progress.count_episode,
            stop=call.progress.stop,
        )
    _warn_of_silent_judge(call, played)
    engine = sampling_determinism(call, settings.engine)
    return replace(
        played,
        determinism=engine if played.determinism == "bytes" else played.determinism,
        environment={"weights": opened.handed_over} if opened.handed_over else {},
    )


def _sampling(opened: OpenedEngine, progress: _EpisodeProgress) -> BatchSampling | ConcurrentSampling:
    from erl_pipeline.episodes import play

    if opened.concurrent is None:
        return play.BatchSampling(opened.batches, opened.max_in_flight)
    return play.ConcurrentSampling(opened.concurrent, opened.max_in_flight, progress.count_tokens)


def _plays_ahead(opened: OpenedEngine, setup: EpisodeSetup) -> bool:
    """Whether episodes of the next shards begin on free places. With a single place each shard begins with an
    empty prefix cache; a judge and a gateway are opened for one shard."""
    alone = setup.chat_server is None and setup.gateway is None
    return opened.goes_on and opened.max_in_flight > 1 and alone


def _protocol(settings: PlaySettings, *, first_only: bool, retrieval: bool) -> EpisodeProtocol:
    from erl_pipeline.episodes.play import protocol_of

    method = plugins("methods")[settings.episode.type].value
    environment = plugins("environments")[settings.environment.type].value

    def with_prompts(prompts: PromptFormat | None) -> EpisodeProtocol:
        protocol: EpisodeProtocol = method.open_episode(
            settings.episode, prompts, first_only=first_only, retrieval=retrieval
        )
        return protocol

    return protocol_of(environment, settings.environment, with_prompts)


def opened_engine(
    call: StageCall[Any],
    engine: PluginSettings,
    model: SampledModel,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> OpenedEngine:
    """The engine of a recipe, serving a checkpoint. `on_tokens`: called with the number of tokens as they are
    sampled, by an engine that takes batches. What is played ahead for other artifacts ends."""
    end_episodes_ahead(call.resources, but_for=call.artifact_id)
    running = with_operational("engines", engine, call.resources.settings.engine)
    plugin: EnginePlugin[Any] = plugins("engines")[engine.type].value
    make_room(call.resources.kept)
    asked = EngineCall(call.resources, call.progress, call.progress.stop, on_tokens)
    return plugin.open(running, model, asked)


def sampling_determinism(call: StageCall[Any], engine: PluginSettings) -> Determinism:
    """Whether the engine of a recipe, as this worker runs it, gives the same bytes again."""
    from erl_pipeline.policies.hardware import adds_in_fixed_order, training_device

    running = with_operational("engines", engine, call.resources.settings.engine)
    plugin: EnginePlugin[Any] = plugins("engines")[engine.type].value
    device = training_device()
    invariant = call.resources.deterministic and device.type == "cuda"
    same = adds_in_fixed_order(device) and not plugin.bytes_vary_because(running, invariant)
    return "bytes" if same else "approximate"


def _chat_server(judge: JudgeFeedback | None) -> ChatServer | None:
    """The server of the settings. Its key comes from an environment variable and goes nowhere else."""
    if judge is None:
        return None
    from erl_pipeline.engines.chat_server import ChatServer, key_of

    assert judge.url is not None
    key = key_of(os.environ, judge.api_key_variable, "feedback.api_key_variable")
    return ChatServer(judge.url, judge.model, key, judge.request_seconds, judge.max_in_flight)


def _warn_of_silent_judge(call: StageCall[Any], played: PlayedEpisodes) -> None:
    """Warn where every question to a judge failed; single failures are data."""
    said = [row for row in played.rows if row.role == JUDGE]
    if said and all(row.finish_reason in ("judge_error", "judge_timeout") for row in said):
        call.progress.warn(
            f"the judge answered none of {len(said)} questions, and the feedback of rules was used; the "
            f"first failure: {said[0].feedback}"
        )


def _retrieve(call: StageCall[Any], settings: PlaySettings, memory: Artifact | None) -> Retrieve:
    from erl_pipeline.episodes.context import RetrievalRequest, nothing_remembered
    from storage.memory.search import Scoring
    from storage.memory.view import MemoryHit

    how = settings.retrieval
    if memory is None or how is None:
        return nothing_remembered
    view = opened_memory(call.resources, how.embedding_model).at(memory.manifest.artifact_id)
    scoring = Scoring(
        credit_weight=how.credit_weight,
        support_weight=how.support_weight,
        retrieval_penalty=how.retrieval_penalty,
        exploration=how.exploration or 0.0,
        candidates=how.candidates or how.top_k,
        min_similarity=how.min_similarity,
        fallback=how.fallback or "none",
    )

    def retrieve(requests: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
        answers: dict[int, list[MemoryHit]] = {}
        task_types = {request.task_type if how.same_task_type else None for request in requests}
        for task_type in sorted(task_types, key=str):
            indices = [i for i, each in enumerate(requests) if task_type in (None, each.task_type)]
            hits = view.retrieve([requests[i].situation for i in indices], how.top_k, scoring, task_type)
            answers.update(zip(indices, hits, strict=True))
        return [answers[i] for i in range(len(requests))]

    return retrieve


class _EpisodeProgress:
    """Running success rates and tokens a second."""

    def __init__(self, call: StageCall[Any]) -> None:
        self._progress = call.progress
        self._started = time.perf_counter()
        self._counters: Counter[str] = Counter()
        self._tokens = 0

    def count_tokens(self, count: int) -> None:
        self._tokens += count

    def count_episode(self, rows: list[Trajectory]) -> None:
        self._counters.update(count_rollouts(rows))
        rate = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        self._progress.advance(1, tokens_per_second=rate, **success_rates(self._counters))
