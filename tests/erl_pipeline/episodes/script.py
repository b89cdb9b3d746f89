"""Episodes whose policy says what a test tells it to say."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.base import Task
from erl_pipeline.environments.catalog import open_environment, prompt_format
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.episode import EpisodeRules, run_episode
from erl_pipeline.episodes.requests import ReflectionsWanted, TurnWanted, Wanted
from erl_pipeline.episodes.rows import Provenance
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer
from storage.tables.trajectories import Trajectory

CONTEXT = 128
# Start in the upper left corner, goal two cells to its right, a hole below the start.
ENVIRONMENT = FrozenLakeConfig(world_seed=0)
TASK = Task(
    task_id="corner",
    task_type="frozen_lake-4x4",
    environment="frozen_lake",
    payload={
        "board": ["SFGF", "HFFF", "FFFF", "FFFF"],
        "max_steps": 6,
        "actions": {"a": "right", "b": "down", "c": "left", "d": "up"},
        "symbols": {"player": "@", "frozen": "#", "hole": "$", "goal": "&"},
    },
)
PROVENANCE = Provenance("recipe", 3, "policy-1", "tokenizer", "memory-1", 1.0, 0)


def rules(tokenizer: PreTrainedTokenizerFast, **changes: object) -> EpisodeRules:
    settings: dict[str, object] = {
        "retries": True,
        "reflection": True,
        "retrieval": False,
        "max_revisions": 1,
        "success_threshold": 1.0,
        "temperature": 1.0,
        "max_new_tokens": 8,
        "max_reflection_tokens": 8,
        "context_length": CONTEXT,
        "end_token_ids": frozenset({tokenizer.eos_token_id}),
    }
    return EpisodeRules(**{**settings, **changes})  # type: ignore[arg-type]


def play(
    answers: Sequence[str], retrieved: Sequence[object] = (), sample: int = 0, **changes: object
) -> tuple[list[Trajectory], list[Wanted]]:
    """One episode in which the policy says `answers`, turn by turn; returns its rows and all it asked for."""
    tokenizer = build_tokenizer(ENVIRONMENT, CONTEXT)
    steps = run_episode(
        TASK,
        sample,
        open_environment(ENVIRONMENT, TASK),
        prompt_format(ENVIRONMENT),
        ChatTokenizer(tokenizer),
        rules(tokenizer, **changes),
        PROVENANCE,
    )
    remaining = list(answers)
    asked: list[Wanted] = []
    try:
        wanted = next(steps)
        while True:
            asked.append(wanted)
            if isinstance(wanted, ReflectionsWanted):
                wanted = steps.send(list(retrieved))  # type: ignore[arg-type]
                continue
            assert isinstance(wanted, TurnWanted)
            ids = tuple(tokenizer(f"{remaining.pop(0)} <end>", add_special_tokens=False)["input_ids"])
            wanted = steps.send(Generation(ids, (-0.25,) * len(ids), "stop"))
    except StopIteration as end:
        assert not remaining
        return end.value, asked
