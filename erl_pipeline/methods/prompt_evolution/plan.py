"""The plan of an iteration of prompt evolution, the settings that it refuses, and what tables show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.plugins import plugins
from erl_pipeline.methods.prompt_evolution.adopt import ADOPT_INSTRUCTION, TRIALS, AdoptSettings
from erl_pipeline.methods.prompt_evolution.settings import FIRST_ATTEMPT, PromptEvolutionConfig
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.plan import POLICY, RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.policies.checkpoints import CHECKPOINT, policy_traits
from erl_pipeline.stages import columns as shared
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.rollouts.try_notes import TRY_NOTES, plan_trials
from storage.errors import ConfigError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig

_NOTHING = AdoptSettings()


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Attempts at the tasks drawn for this iteration, with the instruction of the policy, and proposals."""
    return plan_shards(planner, state, iteration, memory=None)


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Try the proposals, and adopt the best ones."""
    settings = planner.config.method
    assert isinstance(settings, PromptEvolutionConfig)
    trials = rollouts
    # Without `remember` only the stages of a policy are asked for, of an environment that may be missing:
    # stored rollouts are refused.
    if remember:
        trials = plan_trials(
            planner, state, iteration, rollouts, settings.trials, instruction_per=settings.instruction_per
        )
    checkpoint = planner.add(
        ADOPT_INSTRUCTION,
        {CHECKPOINT: state.models[POLICY], TRIALS: trials},
        iteration=iteration,
        settings=_NOTHING,
    )
    return replace(state, models={**state.models, POLICY: checkpoint})


def require_possible(config: RunConfig) -> None:
    """Raise ConfigError, which names the setting, for what has no meaning without an update."""
    environment = plugins("environments")[config.environment.type].value
    refused = {
        "policy.lora": policy_traits(config.policy).lora is not None and "there is no adapter to train",
        "pipeline.lag": config.pipeline.lag and "there is no update to sample beside",
        "pipeline.max_age": config.pipeline.max_age is not None and "no update could get old trajectories",
        "rollouts.refill": config.rollouts.refill > 1 and "no update needs groups that differ in reward",
        "evaluation.whole_episodes": config.evaluation.whole_episodes
        and "an episode has one attempt, which evaluations make anyway",
        "environment": bool(environment.parts(config.environment))
        and "the parts of a mixture have prompts of their own",
    }
    for setting, why in refused.items():
        if why:
            raise ConfigError(f"{setting}: not allowed with method.type: prompt_evolution, since {why}")


_FIRST = shared.success_of_first_attempts(FIRST_ATTEMPT, "success rate of attempts in training")
_TRIED = Column(TRY_NOTES.name, "notes_tried", "tried", "new instructions that were tried", ",d")
_ADOPTED = Column(
    ADOPT_INSTRUCTION.name,
    "adopted",
    "adopted",
    "new instructions that took the place of those before",
    ",d",
    adds_up=True,
)


def columns(settings: PromptEvolutionConfig) -> Sequence[Column]:
    return (
        _FIRST,
        _TRIED,
        _ADOPTED,
        shared.HELD_OUT,
        shared.HELD_OUT_SAMPLED,
        shared.TOKENS,
        shared.TOKENS_PER_SECOND,
    )
