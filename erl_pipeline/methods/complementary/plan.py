"""The plan of an iteration of Complementary RL, the settings that it refuses, and what tables show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.objective import RoleObjective
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.methods.complementary.credit import CREDIT_EXPERIENCE, CreditSettings
from erl_pipeline.methods.complementary.evaluate import EVALUATE_WITH_EXPERIENCE
from erl_pipeline.methods.complementary.extract import EXTRACT_EXPERIENCE
from erl_pipeline.methods.complementary.extractor import (
    COLD_START_EXTRACTOR,
    COPY_EXTRACTOR,
    UPDATE_EXTRACTOR,
)
from erl_pipeline.methods.complementary.memory import (
    INDEX_EXPERIENCE,
    MERGE_EXPERIENCE,
    IndexExperienceSettings,
)
from erl_pipeline.methods.complementary.score import SCORE_EXPERIENCE, WEIGHTED_UPDATE
from erl_pipeline.methods.complementary.settings import (
    CALLS,
    CREDIT,
    EXTRACTOR,
    FIRST_ATTEMPT,
    MERGED,
    SCORES,
    ComplementaryConfig,
    CrlExperienceConfig,
    WeightsExperienceConfig,
    keep_settings,
)
from erl_pipeline.plan.column import ChartLine, Column, only_drawn
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.stages import columns as shared
from erl_pipeline.stages.memory import plan_forgetting
from erl_pipeline.stages.names import MEMORY, ROLLOUTS, TASKS
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.training.first_checkpoint import PretrainedSettings
from erl_pipeline.stages.training.training_stage import plan_training
from erl_pipeline.stages.training.update_policy import REFERENCE, UPDATE_POLICY, plan_update
from storage.artifacts.recipe import derive_seed

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def plan_beginning(planner: Planner, state: RunState) -> RunState:
    """Plan the extractor's first checkpoint: its own cold start with the tiny policy, else its own model or
    the policy's."""
    crl = _settings(planner).crl
    if crl is None:
        return state
    policy = planner.config.policy
    traits = policy_traits(policy)
    if isinstance(policy, TinyPolicyConfig):
        seed = (crl.extractor.cold_start or policy.cold_start).seed
        chosen = planner.config.seed if seed == "run" else seed
        first, base = planner.add(COLD_START_EXTRACTOR, {}, iteration=None, seed=chosen), None
    elif crl.extractor.model is None:
        first, base = state.models[POLICY], state.bases.get(POLICY)
    else:
        weights = planner.sources.models[crl.extractor.model]
        settings = PretrainedSettings(weights=weights, dtype=traits.dtype)
        first = planner.add(COPY_EXTRACTOR, {}, iteration=None, settings=settings)
        base = None if traits.lora is None else first
    return replace(
        state,
        models={**state.models, EXTRACTOR: first},
        initial={**state.initial, EXTRACTOR: first},
        bases=state.bases if base is None else {**state.bases, EXTRACTOR: base},
    )


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Attempts at the tasks drawn for this iteration; guided ones see the memory that the state names."""
    return plan_shards(planner, state, iteration, memory=state.memories.get(MEMORY))


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Extract, index, credit, update the extractor, merge; then update the policy. With the variant
    `weights`: score, then update."""
    settings = _settings(planner)
    if isinstance(settings.experience, WeightsExperienceConfig):
        return _plan_weighted(planner, state, iteration, rollouts, remember=remember)
    crl = settings.crl
    warming_up = False
    if remember and crl is not None:
        state = _plan_experience(planner, state, iteration, rollouts, crl)
        warming_up = iteration <= crl.warmup_iterations
    return _plan_policy(planner, state, iteration, rollouts, held=warming_up)


def plan_evaluation(planner: Planner, state: RunState, iteration: int, *, last: bool) -> None:
    """Held-out attempts that see the newest experience."""
    crl = _settings(planner).crl
    if crl is None or not crl.evaluate or MEMORY not in state.memories:
        return
    if planner.evaluation_due(
        EVALUATE_WITH_EXPERIENCE, iteration, last=last, every=planner.config.evaluation.every
    ):
        inputs = {**state.model_inputs(POLICY), TASKS: state.tasks, MEMORY: state.memories[MEMORY]}
        planner.add(
            EVALUATE_WITH_EXPERIENCE,
            inputs,
            iteration=iteration,
            seed=derive_seed(planner.config.seed, EVALUATE_WITH_EXPERIENCE.name),
            index={"iteration": iteration},
        )


def _plan_experience(
    planner: Planner, state: RunState, iteration: int, rollouts: str, crl: CrlExperienceConfig
) -> RunState:
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
        INDEX_EXPERIENCE,
        {ROLLOUTS: rollouts, CALLS: calls, **seen},
        iteration=iteration,
        settings=planner.shared(IndexExperienceSettings(keep=keep_settings(crl), key=crl.key)),
        index=index,
    )
    memory = plan_forgetting(planner, memory, iteration)
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
    if crl.merge_every is not None and iteration % crl.merge_every == 0:
        merged = planner.add(
            MERGE_EXPERIENCE,
            {**state.model_inputs(EXTRACTOR), MEMORY: memory},
            iteration=iteration,
            seed=planner.config.seed,
            index=index,
        )
        state = replace(state, memories={**state.memories, MEMORY: merged, MERGED: merged})
    return state


def _plan_policy(planner: Planner, state: RunState, iteration: int, rollouts: str, *, held: bool) -> RunState:
    """Update the policy. While it is `held`, its attempts have weight 0, so that it does not change."""
    if not held:
        return plan_update(planner, state, iteration, rollouts)
    settings = planner.settings(UPDATE_POLICY)
    objective = settings.objective.model_copy(
        update={"roles": {FIRST_ATTEMPT: RoleObjective(weight=0.0)}, "kl_coefficient": 0.0}
    )
    without = planner.shared(settings.model_copy(update={"objective": objective}))
    return plan_training(planner, state, iteration, UPDATE_POLICY, {ROLLOUTS: rollouts}, POLICY, without)


def _plan_weighted(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    if not remember:
        return plan_update(planner, state, iteration, rollouts)
    before = {SCORES: state.memories[SCORES]} if SCORES in state.memories else {}
    scores = planner.add(
        SCORE_EXPERIENCE,
        {**state.model_inputs(POLICY), ROLLOUTS: rollouts, **before},
        iteration=iteration,
        seed=planner.config.seed,
        index={"iteration": iteration},
    )
    state = replace(state, memories={**state.memories, SCORES: scores})
    inputs = {ROLLOUTS: rollouts, SCORES: scores}
    if planner.config.objective.needs_reference:
        inputs[REFERENCE] = state.initial[POLICY]
    return plan_training(planner, state, iteration, WEIGHTED_UPDATE, inputs, POLICY)


def _settings(planner: Planner) -> ComplementaryConfig:
    settings = planner.config.method
    assert isinstance(settings, ComplementaryConfig)
    return settings


def require_possible(config: RunConfig) -> None:
    """Raise ValueError, which names both settings, where two settings exclude each other."""
    method = config.method
    assert isinstance(method, ComplementaryConfig)
    if plugins("environments")[config.environment.type].value.has_agents(config.environment):
        raise ValueError(
            f"environment.type: {config.environment.type}; method complementary trains no agents yet, since "
            "it reads one token sequence of each attempt; use method.type: erl or rlvr"
        )
    if method.crl is not None:
        _require_extractor(config, method.crl)
    if isinstance(method.experience, WeightsExperienceConfig) and config.pipeline.max_age is not None:
        raise ValueError(
            f"pipeline.max_age: {config.pipeline.max_age}; allowed with method.experience.type: weights is "
            "null, since it trains stored trajectories again by their weight, whatever their age"
        )


def _require_extractor(config: RunConfig, crl: CrlExperienceConfig) -> None:
    model, engine = crl.extractor.model, config.engine
    if policy_traits(config.policy).own_words:
        if model is not None:
            raise ValueError(
                f"method.experience.extractor.model: {model}; allowed with policy.type: tiny is null: "
                "the extractor must read and write the words of the tiny policy, and gets a cold start of "
                "its own"
            )
        environment = plugins("environments")[config.environment.type].value
        if environment.tiny.extractor(config.environment) is None:
            raise ValueError(
                f"method.experience: crl needs a model for its extractor; with policy.type: tiny these "
                f"settings of environment.type: {config.environment.type} give none (FrozenLake: format: "
                "compact with action_mode: step). Allowed are those, a pretrained policy, or "
                "method.experience: off"
            )
    elif crl.extractor.cold_start is not None:
        raise ValueError(
            "method.experience.extractor.cold_start is for policy.type: tiny; leave it out with policy.type: "
            "pretrained, or name a model in method.experience.extractor.model"
        )
    because = plugins("engines")[engine.type].value.one_model_because(engine)
    if because is not None:
        raise ValueError(
            f"engine.{because}: these servers serve one model, and method.experience: crl "
            "samples from two; leave it out, so that each model gets a server of its own, or set "
            "method.experience: off"
        )


_FIRST = shared.success_of_first_attempts(FIRST_ATTEMPT, "success rate of attempts in training")
_HALVES = ChartLine("Guided and free attempts", "guided", "success", "Halves of the groups with experience")
_GUIDED = Column(
    CREDIT_EXPERIENCE.name,
    "success_guided",
    "guided",
    "success rate of attempts that see experience",
    share=True,
    drawn=_HALVES,
)
_FREE = Column(
    CREDIT_EXPERIENCE.name,
    "success_free",
    "free",
    "success rate of attempts from which experience is withheld",
    share=True,
    drawn=ChartLine(_HALVES.chart, "free", "success"),
)
_GAP = Column(
    CREDIT_EXPERIENCE.name,
    "guided_minus_free",
    "gap",
    "success of guided attempts minus that of free ones",
    "+.3f",
    compare=True,
    drawn=ChartLine("What experience adds", "guided less free", "success"),
)
_WITH_EXPERIENCE = Column(
    EVALUATE_WITH_EXPERIENCE.name,
    "greedy_success",
    "held-out with",
    "success rate of greedy first attempts on held-out tasks that see experience",
    compare=True,
    title="held-out success with experience",
    share=True,
    interval=True,
    drawn=ChartLine("Held-out success", "greedy first attempt with experience", "success"),
)
_TRAINED = Column(
    UPDATE_EXTRACTOR.name,
    "requests_trained",
    "extractor",
    "requests that the extractor was trained on",
    ",d",
)

_ANSWERS, _SHARE = "What the extractor answers", "share of operations"
_EXTRACTOR_CHARTS = (
    *(
        only_drawn(EXTRACT_EXPERIENCE.name, metric, ChartLine(_ANSWERS, line, _SHARE))
        for metric, line in (
            ("share_add", "add"),
            ("share_update", "update"),
            ("share_return", "return"),
            ("parse_failure_rate", "ill-formed"),
            ("copy_rate", "copies of a lesson"),
        )
    ),
    only_drawn(CREDIT_EXPERIENCE.name, "credit_mean", ChartLine("Credit of experience", "mean", "-1 to 1")),
    only_drawn(
        CREDIT_EXPERIENCE.name,
        "retrieval_entropy",
        ChartLine("How evenly entries are shown", "entropy", "nats"),
        only_with="credits",
    ),
    *(
        only_drawn(UPDATE_EXTRACTOR.name, metric, line, only_with="optimizer_steps")
        for metric, line in (
            ("policy_loss", ChartLine("Extractor", "loss", "loss")),
            ("clip_fraction", ChartLine("Extractor: clipped tokens", "clipped", "share")),
        )
    ),
)


def columns(settings: ComplementaryConfig) -> Sequence[Column]:
    crl = settings.crl
    if crl is None:
        return shared.training_columns((_FIRST,))
    return shared.training_columns(
        (_FIRST, _GUIDED, _FREE, _GAP, shared.ENTRIES, *((_TRAINED,) if crl.extractor.train else ())),
        held_out=(_WITH_EXPERIENCE,) if crl.evaluate else (),
        charts=_EXTRACTOR_CHARTS,
    )
