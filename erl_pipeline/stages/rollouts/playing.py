"""Playing episodes with a checkpoint: what rollouts and evaluation have in common."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.generation import (
    EngineConfig,
    SamplingConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
    identity_of,
    with_operational,
)
from erl_pipeline.config.memory import RetrievalSettings
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.rollouts import Failed
from erl_pipeline.environments.interface import Task, part_name
from erl_pipeline.episodes.roles import JUDGE
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.resources import Resources
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.policies.checkpoints import (
    CheckpointParts,
    LoadedPolicies,
    WeightsSettings,
    checkpoint_parts,
    weights_settings,
)
from erl_pipeline.stages.rollouts.counts import count_rollouts, success_rates
from erl_pipeline.stages.tasks.build_environment_files import with_built_files
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity

if TYPE_CHECKING:
    from erl_pipeline.config.feedback import JudgeFeedback
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.engines.chat_server import ChatServer
    from erl_pipeline.engines.interface import GenerationEngine
    from erl_pipeline.engines.vllm.engine import VllmEngine
    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.episodes.limits import RoleLimits
    from erl_pipeline.episodes.play import Batches, Played, Turns
    from erl_pipeline.episodes.requests import Retrieve
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from storage.artifacts.artifact import Artifact
    from storage.tables.trajectories import Trajectory

TASKS, MEMORY = "tasks", "memory"
"""Names of the inputs of a stage that plays; also that of the memory in a run's state."""

_VLLM_STARTS = "the vLLM server to start"


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
    engine: EngineConfig
    weights: WeightsSettings


def play_settings(config: RunConfig) -> PlaySettings:
    """What the episodes of a run depend on."""
    method = plugins("methods")[config.method.type].value
    return PlaySettings(
        episode=method.episode_settings(config.method),
        retrieval=method.retrieval(config.method),
        environment=environment_identity(config),
        sampling=config.sampling,
        success_threshold=config.rollouts.success_threshold,
        step_seconds=config.rollouts.step_seconds,
        failed=config.rollouts.failed,
        retries=config.rollouts.retries,
        engine=identity_of(config.engine),
        weights=weights_settings(config),
    )


@dataclass(frozen=True)
class OwnEpisodes:
    """Episodes that a stage defines itself, instead of those of the method."""

    protocol: EpisodeProtocol
    by_role: Mapping[str, RoleLimits]


def play_episodes(
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
    own: OwnEpisodes | None = None,
    must_fit: Sequence[Task] = (),
) -> Played:
    """One episode for each task and sample index, with the checkpoint among the stage's inputs.

    Args:
        samples: sample indices: one range for all tasks, or one for each task.
        temperature: of all roles, in place of the settings'; 0 always takes the most probable token.
        first_only: an episode is its first attempt.
        with_memory: whether to retrieve from the memory among the stage's inputs, where there is one.
        own: episodes in place of the method's; `temperature` and `first_only` then have no effect.
        must_fit: tasks whose first prompts must leave room in the policy's context; checked before anything
            is sampled.

    Raises what `erl_pipeline.episodes.play.play_episodes` and
    `erl_pipeline.episodes.first_prompts.require_room` raise.
    """
    from erl_pipeline.episodes import play
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.episodes.first_prompts import require_room
    from erl_pipeline.episodes.limits import EpisodeLimits
    from erl_pipeline.episodes.rows import Provenance
    from erl_pipeline.policies.hardware import training_device
    from erl_pipeline.stages.determinism import sampling_determinism

    parts = checkpoint_parts(call.inputs)
    policy = call.resources.keep("policies", LoadedPolicies).get(parts, settings.weights)
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
            end_token_ids=policy.eos_token_ids,
            success_threshold=settings.success_threshold,
            step_seconds=settings.step_seconds,
            by_role=by_role,
            retries=settings.retries if settings.failed == "retry" else 0,
            failures_are_zero=settings.failed == "zero",
        ),
        provenance=Provenance(
            recipe_id=call.artifact_id,
            iteration=iteration,
            policy_versions={POLICY: parts.checkpoint_id},
            tokenizer_digest=policy.tokenizer_digest,
            memory_version="" if memory is None else memory.manifest.artifact_id,
            run_seed=run_seed,
        ),
        withhold=settings.retrieval.withhold if settings.retrieval is not None else 0.0,
        chat_server=(
            None if first_only or own is not None else _chat_server(method.chat_server(settings.episode))
        ),
    )
    require_room(setup, must_fit)
    progress = _EpisodeProgress(call)
    played = play.play_episodes(
        setup,
        tasks,
        samples,
        _sampling(call, settings, policy, parts, progress),
        _retrieve(call, settings, memory),
        on_episode=progress.count_episode,
        stop=call.resources.stop,
    )
    _warn_of_silent_judge(call, played)
    engine = sampling_determinism(engine_of(call, settings.engine), training_device())
    return replace(played, determinism=engine if played.determinism == "bytes" else played.determinism)


def _protocol(settings: PlaySettings, *, first_only: bool, retrieval: bool) -> EpisodeProtocol:
    """The protocol of the method's episodes. In a mixture each part has prompts of its own."""
    method = plugins("methods")[settings.episode.type].value
    environment = plugins("environments")[settings.environment.type].value

    def with_prompts(prompts: PromptFormat | None) -> EpisodeProtocol:
        protocol: EpisodeProtocol = method.open_episode(
            settings.episode, prompts, first_only=first_only, retrieval=retrieval
        )
        return protocol

    parts = environment.parts(settings.environment)
    if not parts:
        return with_prompts(environment.prompts(settings.environment))
    of_part = {name: with_prompts(part.plugin.prompts(part.settings)) for name, part in parts.items()}
    return lambda context: of_part[part_name(context.identity.task.task_id)](context)


def engine_of(call: StageCall[Any], engine: EngineConfig) -> EngineConfig:
    """The engine of the recipe, as this worker runs it."""
    return with_operational(engine, call.resources.settings.engine)


def release_engine(resources: Resources) -> None:
    """Make a server release its memory before something trains on the same device."""
    serving = resources.kept("vllm")
    if serving is not None:
        serving.offload()


class _ServedModels:
    """A vLLM engine, and for each model the checkpoint that it was verified to sample from."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.checkpoint_ids: dict[str, str] = {}

    def offload(self) -> None:
        """Release the memory of the servers."""
        self.engine.offload()
        self.checkpoint_ids.clear()


def _sampling(
    call: StageCall[Any],
    settings: PlaySettings,
    policy: LoadedPolicy,
    parts: CheckpointParts,
    progress: _EpisodeProgress,
) -> Batches | Turns:
    """The engine of the settings, with the policy's weights."""
    from erl_pipeline.episodes import play

    engine = engine_of(call, settings.engine)
    if isinstance(engine, VllmEngineConfig):
        server = _served(call, engine, policy, parts, POLICY)
        return play.Turns(server, engine.max_in_flight, progress.count_tokens)
    return play.Batches(_embedded(call, engine, policy, parts, POLICY, progress.count_tokens))


def model_engine(
    call: StageCall[Any],
    engine: EngineConfig,
    policy: LoadedPolicy,
    parts: CheckpointParts,
    name: str,
    on_tokens: Callable[[int], None],
) -> GenerationEngine:
    """The engine of a recipe, with the weights of a checkpoint under a model's name, for batches of requests.

    Args:
        policy: the checkpoint, as it is loaded in this process.
        on_tokens: called with the number of tokens as they are sampled; not called with vLLM.
    """
    running = engine_of(call, engine)
    if isinstance(running, VllmEngineConfig):
        return _served(call, running, policy, parts, name)
    return _embedded(call, running, policy, parts, name, on_tokens)


def _embedded(
    call: StageCall[Any],
    engine: TransformersEngineConfig,
    policy: LoadedPolicy,
    parts: CheckpointParts,
    name: str,
    on_tokens: Callable[[int], None],
) -> GenerationEngine:
    from erl_pipeline.engines.embedded_models import EmbeddedEngine

    embedded = EmbeddedEngine(engine.max_batch_sequences, stop=call.resources.stop, on_tokens=on_tokens)
    embedded.serve(name, policy.model, parts.checkpoint_id, policy.eos_token_ids)
    return embedded


def _served(
    call: StageCall[Any],
    engine: VllmEngineConfig,
    policy: LoadedPolicy,
    parts: CheckpointParts,
    name: str,
) -> VllmEngine:
    """The vLLM engine, verified to sample from this checkpoint. The server of each model starts at the first
    call for it and ends with the worker's resources."""
    from erl_pipeline.engines.serving import served_checkpoint
    from erl_pipeline.engines.vllm.engine import VllmEngine
    from erl_pipeline.policies.hardware import release_cached_memory

    resources = call.resources
    started = resources.keep(
        "vllm engine",
        lambda: VllmEngine(
            engine,
            resources.scratch / "vllm",
            os.environ,
            resources.stop,
            lambda seconds, line: call.progress.waiting(_VLLM_STARTS, seconds, line),
            call.progress.warn,
        ),
    )
    serving = resources.keep("vllm", lambda: _ServedModels(started))
    if serving.checkpoint_ids.get(name) != parts.checkpoint_id:
        serving.checkpoint_ids.pop(name, None)
        # Release the trainer and cached memory, so that a server on the same GPU finds room.
        resources.keep("policies", LoadedPolicies).forget_trainer()
        release_cached_memory()
        started.serve(
            name, served_checkpoint(policy, parts.checkpoint_id, parts.base_folder, parts.adapter_folder)
        )
        serving.checkpoint_ids[name] = parts.checkpoint_id
    if engine.max_in_flight == 1 and not engine.others_servers:
        # Whether a prefix comes from the cache or is computed may change the last bits; see
        # `sampling_determinism`.
        started.reset_prefix_cache(name)
    return started


def _chat_server(judge: JudgeFeedback | None) -> ChatServer | None:
    """The server of the settings. Its key comes from an environment variable and goes nowhere else."""
    if judge is None:
        return None
    from erl_pipeline.engines.chat_server import ChatServer, key_of

    assert judge.url is not None
    key = key_of(os.environ, judge.api_key_variable, "feedback.api_key_variable")
    return ChatServer(judge.url, judge.model, key, judge.request_seconds, judge.max_in_flight)


def _warn_of_silent_judge(call: StageCall[Any], played: Played) -> None:
    """Warn where every question to a judge failed; single failures are data."""
    said = [row for row in played.rows if row.role == JUDGE]
    if said and all(row.finish_reason in ("judge_error", "judge_timeout") for row in said):
        call.progress.warn(
            f"the judge answered none of {len(said)} questions, and the feedback of rules was used; the "
            f"first failure: {said[0].feedback}"
        )


def _retrieve(call: StageCall[Any], settings: PlaySettings, memory: Artifact | None) -> Retrieve:
    """Answers retrievals from a memory version."""
    from erl_pipeline.episodes.requests import RetrievalRequest, nothing_remembered
    from storage.memory.scoring import Scoring
    from storage.memory.view import MemoryHit

    how = settings.retrieval
    if memory is None or how is None:
        return nothing_remembered
    view = call.resources.memory(how.embedding_model).at(memory.manifest.artifact_id)
    scoring = Scoring(
        credit_weight=how.credit_weight,
        support_weight=how.support_weight,
        retrieval_penalty=how.retrieval_penalty,
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
        """Count tokens that the engine has sampled."""
        self._tokens += count

    def count_episode(self, rows: list[Trajectory]) -> None:
        """Count an episode that is over."""
        self._counters.update(count_rollouts(rows))
        rate = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        self._progress.advance(1, tokens_per_second=rate, **success_rates(self._counters))
