"""Playing episodes with a checkpoint: what rollouts and evaluation have in common."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from erl_pipeline.config.generation import VllmEngineConfig
from erl_pipeline.engines.embedded_models import EmbeddedEngine
from erl_pipeline.engines.interface import POLICY
from erl_pipeline.environments.base import Task
from erl_pipeline.environments.catalog import open_environment, prompt_format
from erl_pipeline.episodes.batched_driver import Retrieve, run_batched
from erl_pipeline.episodes.concurrent_driver import run_concurrently
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.episode import EpisodeRules, run_episode
from erl_pipeline.episodes.requests import EpisodeSteps, ReflectionsWanted
from erl_pipeline.episodes.rows import Provenance
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.stages.rollout_counts import count_rollouts, success_rates
from storage.artifacts.recipe import Recipe
from storage.memory.view import MemoryHit, MemoryView
from storage.tables.trajectories import Trajectory


def play_episodes(
    context: RunContext,
    tasks: Sequence[Task],
    samples: range,
    checkpoint_id: str,
    memory_id: str | None,
    recipe: Recipe,
    iteration: int,
    *,
    temperature: float,
    retries: bool,
) -> list[Trajectory]:
    """All trajectories of one episode for each task and sample index, episode by episode.

    `recipe` is that of the artifact they will be in; ids derive from it. Without `retries` an episode
    is its first attempt. Reflections see memory only where `memory_id` is given.
    """
    config = context.config
    policy = context.policy(checkpoint_id)
    rules = EpisodeRules(
        retries=retries,
        reflection=config.reflection,
        retrieval=memory_id is not None,
        max_revisions=config.rollouts.max_revisions,
        success_threshold=config.rollouts.success_threshold,
        temperature=temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        max_reflection_tokens=config.sampling.max_reflection_tokens,
        context_length=policy.context_length,
        end_token_ids=policy.eos_token_ids,
    )
    provenance = Provenance(
        recipe_id=recipe.artifact_id,
        iteration=iteration,
        policy_version=checkpoint_id,
        tokenizer_digest=policy.tokenizer_digest,
        memory_version=memory_id or "",
        temperature=temperature,
        run_seed=recipe.seed,
    )
    chat = ChatTokenizer(policy.tokenizer)
    prompts = prompt_format(config.environment)
    episodes = [
        partial(
            run_episode,
            task,
            sample,
            open_environment(config.environment, task),
            prompts,
            chat,
            rules,
            provenance,
        )
        for task in tasks
        for sample in samples
    ]
    progress = _Progress(context, recipe.stage)
    finished = _run(context, checkpoint_id, episodes, _retriever(context, memory_id), progress)
    return [row for episode in finished for row in episode]


def _run(
    context: RunContext,
    checkpoint_id: str,
    episodes: Sequence[Callable[[], EpisodeSteps]],
    retrieve: Retrieve,
    progress: _Progress,
) -> list[list[Trajectory]]:
    """Run the episodes on the engine of the configuration; their trajectories, in order."""
    settings = context.config.engine
    if isinstance(settings, VllmEngineConfig):
        server = context.vllm(checkpoint_id)
        if settings.max_in_flight == 1 and not settings.servers:
            # Whether a prefix is found or computed may change the last bits; see `sampling_guarantee`.
            server.reset_prefix_cache()
        return run_concurrently(
            episodes,
            server,
            retrieve,
            progress.count_episode,
            progress.count_tokens,
            settings.max_in_flight,
            context.stop,
        )
    policy = context.policy(checkpoint_id)
    engine = EmbeddedEngine(settings.max_batch_sequences, context.stop, progress.count_tokens)
    engine.serve(POLICY, policy.model, checkpoint_id, policy.eos_token_ids)
    return run_batched([begin() for begin in episodes], engine, retrieve, progress.count_episode)


def _retriever(context: RunContext, memory_id: str | None) -> Retrieve:
    """Answers retrievals from one memory version."""
    if memory_id is None:
        return lambda wanted: [[] for _ in wanted]
    view: MemoryView = context.memory.at(memory_id)
    settings = context.config.memory
    assert settings is not None

    def retrieve(wanted: Sequence[ReflectionsWanted]) -> list[list[MemoryHit]]:
        answers: dict[int, list[MemoryHit]] = {}
        task_types = {want.task_type if settings.same_task_type else None for want in wanted}
        for task_type in sorted(task_types, key=str):
            indices = [i for i, want in enumerate(wanted) if task_type in (None, want.task_type)]
            hits = view.search([wanted[i].situation for i in indices], settings.top_k, task_type=task_type)
            answers.update(zip(indices, hits, strict=True))
        return [answers[i] for i in range(len(wanted))]

    return retrieve


class _Progress:
    """Running success rates and tokens a second."""

    def __init__(self, context: RunContext, stage: str) -> None:
        self._listener = context.listener
        self._stage = stage
        self._started = time.perf_counter()
        self._counters: Counter[str] = Counter()
        self._tokens = 0

    def count_tokens(self, count: int) -> None:
        self._tokens += count

    def count_episode(self, rows: list[Trajectory]) -> None:
        self._counters.update(count_rollouts(rows))
        rate = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        self._listener.advance(self._stage, 1, tokens_per_second=rate, **success_rates(self._counters))
