"""Numbers of the shared stages that methods show."""

from __future__ import annotations

from erl_pipeline.methods.interface import Column
from erl_pipeline.stages.build_distillation import BUILD_DISTILLATION
from erl_pipeline.stages.evaluate import EVALUATE
from erl_pipeline.stages.index_memory import INDEX_MEMORY
from erl_pipeline.stages.rollouts import GENERATE_ROLLOUTS
from erl_pipeline.stages.update_policy import UPDATE_POLICY

ENTRIES = Column(INDEX_MEMORY.name, "entries", "memory", "entries in the memory", ",d")
LOSS = Column(
    UPDATE_POLICY.name, "policy_loss", "RL loss", "loss of the reinforcement-learning update", "+.4f"
)
DISTILLED = Column(BUILD_DISTILLATION.name, "sft_rows", "SFT", "rows distilled", ",d")
HELD_OUT = Column(
    EVALUATE.name,
    "greedy_success",
    "held-out",
    "success rate of greedy first attempts on held-out tasks",
    compare=True,
)
TOKENS = Column(GENERATE_ROLLOUTS.name, "generated_tokens", "tokens", "tokens generated", ",d", compare=True)
TOKENS_PER_SECOND = Column(
    GENERATE_ROLLOUTS.name,
    "tokens_per_second",
    "tokens/s",
    "tokens generated in a second of rollouts",
    ",.0f",
)


def success_of(role: str, label: str, meaning: str) -> Column:
    """The success rate of a role's trajectories in training."""
    return Column(GENERATE_ROLLOUTS.name, f"success_{role}", label, meaning, compare=True)


def count_of(role: str, label: str, meaning: str) -> Column:
    """How many trajectories of a role an iteration has."""
    return Column(GENERATE_ROLLOUTS.name, f"{role}_count", label, meaning, ",d")
