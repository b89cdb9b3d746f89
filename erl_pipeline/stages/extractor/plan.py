"""What an extractor adds to the plan of a run."""

from __future__ import annotations

from dataclasses import replace

from erl_pipeline.config.experience import EXTRACTOR
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.stages.extractor.credit import CREDIT_EXPERIENCE, CreditSettings
from erl_pipeline.stages.extractor.extract import EXTRACT_EXPERIENCE
from erl_pipeline.stages.extractor.extractor import COLD_START_EXTRACTOR, COPY_EXTRACTOR, UPDATE_EXTRACTOR
from erl_pipeline.stages.extractor.memory import INDEX_LESSONS, MERGE_EXPERIENCE, IndexLessonsSettings
from erl_pipeline.stages.extractor.names import CALLS, CREDIT, MERGED
from erl_pipeline.stages.memory import plan_forgetting
from erl_pipeline.stages.names import MEMORY, ROLLOUTS
from erl_pipeline.stages.training.first_checkpoint import PretrainedSettings
from erl_pipeline.stages.training.training_stage import plan_training
from storage.memory.versions import ForgetRequest


def plan_extractor(planner: Planner, state: RunState) -> RunState:
    """Plan the extractor's first checkpoint, where the run has one: its own cold start with the tiny policy,
    else its own model or the policy's."""
    lessons = planner.config.lessons
    if lessons is None:
        return state
    extractor = lessons.settings.extractor
    policy = planner.config.policy
    traits = policy_traits(policy)
    if isinstance(policy, TinyPolicyConfig):
        seed = (extractor.cold_start or policy.cold_start).seed
        chosen = planner.config.seed if seed == "run" else seed
        first, base = planner.add(COLD_START_EXTRACTOR, {}, iteration=None, seed=chosen), None
    elif extractor.model is None:
        first, base = state.models[POLICY], state.bases.get(POLICY)
    else:
        weights = planner.sources.models[extractor.model]
        settings = PretrainedSettings(weights=weights, dtype=traits.dtype)
        first = planner.add(COPY_EXTRACTOR, {}, iteration=None, settings=settings)
        base = None if traits.lora is None else first
    return replace(
        state,
        models={**state.models, EXTRACTOR: first},
        initial={**state.initial, EXTRACTOR: first},
        bases=state.bases if base is None else {**state.bases, EXTRACTOR: base},
    )


def plan_lessons(planner: Planner, state: RunState, iteration: int, rollouts: str) -> RunState:
    """Plan what an iteration does with the extractor, where the run has one: extract, index, credit, update
    it, merge. Returns the state after it."""
    lessons = planner.config.lessons
    if lessons is None:
        return state
    crl = lessons.settings
    index = {"iteration": iteration}
    seen = {MEMORY: state.memories[MEMORY]} if MEMORY in state.memories else {}
    calls = planner.add(
        EXTRACT_EXPERIENCE,
        {**state.model_inputs(EXTRACTOR), ROLLOUTS: rollouts, **seen},
        iteration=iteration,
        seed=planner.config.seed,
        index=index,
    )
    memory = planner.add(
        INDEX_LESSONS,
        {ROLLOUTS: rollouts, CALLS: calls, **seen},
        iteration=iteration,
        settings=planner.shared(IndexLessonsSettings(keep=crl.keep(), key=crl.key)),
        index=index,
    )
    merges = crl.merge_every is not None and iteration % crl.merge_every == 0

    def before_merge(request: ForgetRequest) -> bool:
        """A merge that was made before a request stays as it is; one that comes later does not read the
        entry."""
        return not merges or request.came_before(MERGE_EXPERIENCE.name)

    memory = plan_forgetting(planner, memory, iteration, before_merge)
    before = {name: state.memories[name] for name in (CREDIT, MERGED) if name in state.memories}
    credit = planner.add(
        CREDIT_EXPERIENCE,
        {ROLLOUTS: rollouts, CALLS: calls, **seen, **before},
        iteration=iteration,
        settings=planner.shared(
            CreditSettings(
                embedding_model=crl.embedding_model,
                batch=crl.extractor.batch if crl.extractor.train else None,
                credit_per=crl.extractor.credit_per,
            )
        ),
    )
    stores = {name: version for name, version in state.memories.items() if name != MERGED}
    state = replace(state, memories={**stores, MEMORY: memory, CREDIT: credit})
    if crl.extractor.train:
        state = plan_training(planner, state, iteration, UPDATE_EXTRACTOR, {CREDIT: credit}, EXTRACTOR)
    if merges:
        merged = planner.add(
            MERGE_EXPERIENCE,
            {**state.model_inputs(EXTRACTOR), MEMORY: memory},
            iteration=iteration,
            seed=planner.config.seed,
            index=index,
        )
        memory = plan_forgetting(planner, merged, iteration, lambda request: not before_merge(request))
        state = replace(state, memories={**state.memories, MEMORY: memory, MERGED: merged})
    return state
