"""The plan of an iteration of ERL, and what tables and reports show of a run."""

from collections.abc import Sequence
from dataclasses import replace

from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT, ErlConfig
from erl_pipeline.plan.column import ChartLine, Column
from erl_pipeline.plan.plan import RunState
from erl_pipeline.plan.planner import Planner
from erl_pipeline.stages import columns as shared
from erl_pipeline.stages.memory import INDEX_MEMORY, TRIALS, IndexSettings, plan_forgetting
from erl_pipeline.stages.names import MEMORY, ROLLOUTS
from erl_pipeline.stages.rollouts.generate_rollouts import plan_shards
from erl_pipeline.stages.rollouts.try_notes import TRY_NOTES, plan_trials
from erl_pipeline.stages.training.update_policy import plan_update


def plan_rollouts(planner: Planner, state: RunState, iteration: int) -> str:
    """Episodes of the tasks drawn for this iteration; reflections see the memory that the state names."""
    return plan_shards(planner, state, iteration, memory=state.memories.get(MEMORY))


def plan_learning(
    planner: Planner, state: RunState, iteration: int, rollouts: str, *, remember: bool
) -> RunState:
    """Remember, then update and distil."""
    settings = planner.config.method
    assert isinstance(settings, ErlConfig)
    if remember and settings.memory is not None:
        state = _plan_memory(planner, state, iteration, rollouts, settings.memory)
    return plan_update(planner, state, iteration, rollouts)


def _plan_memory(
    planner: Planner, state: RunState, iteration: int, rollouts: str, memory: MemoryConfig
) -> RunState:
    inputs = {ROLLOUTS: rollouts}
    if MEMORY in state.memories:
        inputs[MEMORY] = state.memories[MEMORY]
    if memory.trials is not None:
        inputs[TRIALS] = plan_trials(
            planner, state, iteration, rollouts, memory.trials, memory.embedding_model
        )
    settings = IndexSettings(keep=memory.keep, text_role=REFLECTION, opening_role=FIRST_ATTEMPT)
    version = planner.add(INDEX_MEMORY, inputs, iteration=iteration, settings=planner.shared(settings))
    version = plan_forgetting(planner, version, iteration)
    return replace(state, memories={**state.memories, MEMORY: version})


_FIRST = shared.success_of_first_attempts(FIRST_ATTEMPT, "success rate of first attempts in training")
_EPISODE = shared.success_of_episodes(ChartLine("Success in training", "first or second attempt", "success"))
_SECOND = shared.success_of(
    SECOND_ATTEMPT,
    "2nd",
    "success rate of attempts after a failed one",
    ChartLine(
        "Retries that succeed", "second attempt", "success", "Second attempts are made only after a failure"
    ),
    headline="Retries that succeed",
)
_GAIN = shared.gain_of(
    SECOND_ATTEMPT,
    "gain",
    "success of these minus that of the same task's other first attempts",
)
_RETRIED = shared.count_of(SECOND_ATTEMPT, "retried", "attempts after a failed one")


_KEPT = Column(
    TRY_NOTES.name, "notes_kept", "kept", "new notes that raised the reward of attempts at other tasks", ",d"
)


def columns(settings: ErlConfig) -> Sequence[Column]:
    remembers = settings.memory is not None
    tries = settings.memory is not None and settings.memory.trials is not None
    memory = (*((_KEPT,) if tries else ()), *((shared.ENTRIES,) if remembers else ()))
    further = shared.held_out_episodes("with reflection" if settings.reflection else "with a second attempt")
    return shared.training_columns(
        (_FIRST, _EPISODE, _SECOND, _GAIN, _RETRIED, *memory),
        held_out=(further, *((shared.HELD_OUT_WITH_MEMORY,) if remembers else ())),
        roles=(FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT),
    )
