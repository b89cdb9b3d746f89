"""One episode: an attempt, with experience in its notes where it is guided (arXiv 2603.17621)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import AttemptPrompts
from erl_pipeline.episodes.attempt import play_attempt
from erl_pipeline.episodes.context import EpisodeContext, TurnKey
from erl_pipeline.methods.complementary.settings import FIRST_ATTEMPT
from storage.memory.view import MemoryHit
from storage.tables.trajectories import FREE, Trajectory


class ComplementaryPhase(IntEnum):
    """The order in which requests are answered where episodes advance in lockstep."""

    RETRIEVAL = 0
    ATTEMPT = 1


@dataclass(frozen=True)
class Rules:
    """What all episodes of a shard have in common.

    With `retrieval`, attempts see `top_k` entries, except those from which entries are withheld. With
    probability `dropout` the best entry is moved to the end of the ranking.
    """

    prompts: AttemptPrompts
    retrieval: bool
    top_k: int = 1
    dropout: float = 0.0


async def run_episode(context: EpisodeContext, rules: Rules) -> list[Trajectory]:
    """Attempt the task once. The memory is searched with the last message of the opening, which describes the
    task."""
    place = TurnKey(FIRST_ATTEMPT, ComplementaryPhase.ATTEMPT)
    subgroup = context.subgroup if rules.retrieval else None
    hits: Sequence[MemoryHit] | None = None

    async def told(instructions: str, observation: str) -> Sequence[Message]:
        nonlocal hits
        opening = rules.prompts.attempt(instructions, observation, [])
        if not rules.retrieval or subgroup == FREE:
            return opening
        found = await context.retrieve(ComplementaryPhase.RETRIEVAL, opening[-1]["content"])
        drawn = context.identity.chance(context.identity.sample_index, "dropout")

        def prompt(ranked: Sequence[str]) -> Sequence[Message]:
            # The best comes last, because prompts prefer the latest note.
            return rules.prompts.attempt(instructions, observation, [*reversed(ranked)])

        hits = context.with_room(chosen(found, rules, drawn), prompt, context.environment.tools())
        return prompt([hit.entry.text for hit in hits])

    attempt = await play_attempt(context, place, told)
    return [attempt.row(context, place, parent=None, hits=hits, subgroup=subgroup)]


def chosen(found: Sequence[MemoryHit], rules: Rules, drawn: float) -> Sequence[MemoryHit]:
    """The entries that are shown. With `drawn`, in [0, 1), below the dropout, the best one moves to the
    end."""
    if len(found) > 1 and drawn < rules.dropout:
        found = [*found[1:], found[0]]
    return found[: rules.top_k]
