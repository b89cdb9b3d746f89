"""Playing episodes with a checkpoint of a run: the parts that come from its context."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from erl_pipeline.config.generation import VllmEngineConfig
from erl_pipeline.engines.embedded import TransformersEngine
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes import play
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.limits import EpisodeLimits, RoleLimits
from erl_pipeline.episodes.requests import RetrievalRequest, Retrieve, nothing_remembered
from erl_pipeline.episodes.rows import Provenance
from erl_pipeline.methods.erl.episode import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT, ErlRules, run_episode
from erl_pipeline.methods.erl.prompts import ChatPrompts, PromptTemplates
from erl_pipeline.pipeline.context import RunContext
from erl_pipeline.stages.rollout_counts import count_rollouts, success_rates
from storage.artifacts.recipe import Recipe
from storage.memory.reflection_memory import MemoryHit, MemoryView
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
    attempts = RoleLimits(temperature, config.sampling.max_new_tokens)
    rules = ErlRules(
        prompts=ENVIRONMENT.prompts(config.environment) or ChatPrompts(PromptTemplates()),
        max_revisions=config.rollouts.max_revisions if retries else 0,
        reflection=config.reflection,
        retrieval=memory_id is not None,
    )
    setup = play.EpisodeSetup(
        plugin=ENVIRONMENT,
        settings=config.environment,
        protocol=partial(run_episode, rules=rules),
        chat=ChatTokenizer(policy.tokenizer),
        limits=EpisodeLimits(
            context_length=policy.context_length,
            end_token_ids=policy.eos_token_ids,
            success_threshold=config.rollouts.success_threshold,
            step_seconds=config.rollouts.step_seconds,
            by_role={
                FIRST_ATTEMPT: attempts,
                SECOND_ATTEMPT: attempts,
                REFLECTION: RoleLimits(temperature, config.sampling.max_reflection_tokens),
            },
        ),
        provenance=Provenance(
            recipe_id=recipe.artifact_id,
            iteration=iteration,
            policy_versions={"policy": checkpoint_id},
            tokenizer_digest=policy.tokenizer_digest,
            memory_version=memory_id or "",
            run_seed=recipe.seed,
        ),
    )
    progress = _Progress(context, recipe.stage)
    return play.play_episodes(
        setup,
        tasks,
        samples,
        _sampling(context, checkpoint_id, progress),
        _retriever(context, memory_id),
        on_episode=progress.count_episode,
        stop=context.stop,
    ).rows


def _sampling(context: RunContext, checkpoint_id: str, progress: _Progress) -> play.Batches | play.Turns:
    """The engine of the configuration, serving the checkpoint."""
    settings = context.config.engine
    if isinstance(settings, VllmEngineConfig):
        server = context.vllm(checkpoint_id)
        if settings.max_in_flight == 1 and not settings.servers:
            # Whether a prefix is found or computed may change the last bits; see `sampling_guarantee`.
            server.reset_prefix_cache()
        return play.Turns(server, settings.max_in_flight, progress.count_tokens)
    policy = context.policy(checkpoint_id)
    engine = TransformersEngine(
        policy.model,
        checkpoint_id,
        policy.eos_token_ids,
        settings.max_batch_sequences,
        stop=context.stop,
        on_tokens=progress.count_tokens,
    )
    return play.Batches(engine, settings.max_batch_sequences)


def _retriever(context: RunContext, memory_id: str | None) -> Retrieve:
    """Answers retrievals from one memory version."""
    if memory_id is None:
        return nothing_remembered
    view: MemoryView = context.memory.at(memory_id)
    settings = context.config.memory
    assert settings is not None

    def retrieve(wanted: Sequence[RetrievalRequest]) -> list[list[MemoryHit]]:
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
