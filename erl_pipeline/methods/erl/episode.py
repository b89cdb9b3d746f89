"""One episode of ERL: attempt, gate, feedback, retrieval, reflection, second attempt (arXiv 2602.13949)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from erl_pipeline.config.prompts import JudgeFeedback, render
from erl_pipeline.environments.messages import Message, opening
from erl_pipeline.environments.prompt_format import AttemptReport, PromptFormat, report_values
from erl_pipeline.episodes.agent_attempt import Opening
from erl_pipeline.episodes.attempt import Attempt, play_attempt, rewarded
from erl_pipeline.episodes.context import EpisodeContext, Outcome, TurnKey, trajectory
from erl_pipeline.episodes.dialogue import Dialogue
from erl_pipeline.episodes.judge import AskJudge, judge
from erl_pipeline.episodes.roles import JUDGE
from erl_pipeline.methods.erl.settings import FIRST_ATTEMPT, REFLECTION, SECOND_ATTEMPT
from storage.memory.view import MemoryHit
from storage.tables.trajectories import FREE, Trajectory


def judge_prompt(judge: JudgeFeedback, instructions: str, report: AttemptReport) -> list[Message]:
    return opening(render(judge.system, {}), render(judge.template, report_values(instructions, report)))


class ErlPhase(IntEnum):
    """The order in which requests are answered where episodes advance in lockstep."""

    FIRST_ATTEMPT = 0
    JUDGE = 1
    RETRIEVAL = 2
    REFLECTION = 3
    SECOND_ATTEMPT = 4


@dataclass(frozen=True)
class ErlRules:
    """What all episodes of a shard have in common.

    `max_revisions` rounds of reflection and further attempt follow a first attempt that failed; with 0 an
    episode is its first attempt. Without `reflection` a further attempt follows the feedback alone. With
    `show_failed_attempt` its prompt shows how the previous attempt went. With `retry_ill_formed` a further
    attempt also follows a reflection that cannot be read, on the first attempt's prompt. With `retrieval`
    reflections see memory, except those from which it is withheld. With `retry_from_named_turn` a further
    attempt begins at the turn that the reflection names. `ask_judge` makes the prompt of a judge, whose words
    replace the environment's feedback.
    """

    prompts: PromptFormat
    max_revisions: int
    reflection: bool = True
    show_failed_attempt: bool = False
    retry_ill_formed: bool = False
    retrieval: bool = False
    retry_from_named_turn: bool = False
    ask_judge: AskJudge | None = None


async def run_episode(context: EpisodeContext, rules: ErlRules) -> list[Trajectory]:
    """Play one episode. A full context or a failed environment ends it, and an ill-formed reflection may."""
    place = TurnKey(FIRST_ATTEMPT, ErlPhase.FIRST_ATTEMPT)
    first = latest = await play_attempt(context, place, _without_notes(rules.prompts))
    rows = [first.row(context, place, parent=None)]
    for revision in range(1, rules.max_revisions + 1):
        if not latest.can_be_reflected_on:
            break
        failed_id = rows[-1].trajectory_id
        if rules.ask_judge is not None:
            judge_place = TurnKey(JUDGE, ErlPhase.JUDGE, revision)
            judgement = await judge(context, judge_place, latest, rules.ask_judge)
            judged = judgement.row(context, judge_place, latest, parent=failed_id)
            latest = judgement.applied_to(latest)
            rows[-1:] = [replace(rows[-1], feedback=latest.report.feedback), judged]
        reflection = None
        if rules.reflection:
            reflection = await _reflect(context, rules, first, latest, revision)
            if reflection is None:
                break
            rows.append(reflection.row(context, latest, revision, parent=failed_id))
            if reflection.text is None and not rules.retry_ill_formed:
                break
        place = TurnKey(SECOND_ATTEMPT, ErlPhase.SECOND_ATTEMPT, revision)
        kept = _turns_to_keep(latest, reflection) if rules.retry_from_named_turn else 0
        prompt = _revision_prompt(rules, latest, reflection)
        latest = await play_attempt(context, place, prompt, latest.turns[:kept])
        parent = failed_id
        if reflection is not None:
            parent = rows[-1].trajectory_id
            rows[-1] = rewarded(rows[-1], latest)
        rows.append(latest.row(context, place, parent))
    return rows


@dataclass(frozen=True)
class _Reflection:
    """What the policy wrote on a failed attempt; `text` is None when it is ill-formed."""

    dialogue: Dialogue
    text: str | None
    hits: Sequence[MemoryHit] | None
    subgroup: str | None
    finish_reason: str

    def row(self, context: EpisodeContext, failed: Attempt, revision: int, parent: str) -> Trajectory:
        """The reflection's trajectory, with the feedback it answers. Its reward is that of the attempt it
        leads to, and 0 until this is known."""
        return trajectory(
            context,
            TurnKey(REFLECTION, ErlPhase.REFLECTION, revision),
            self.dialogue,
            Outcome(
                parent=parent,
                reward=0.0,
                success=False,
                finish_reason=self.finish_reason if self.text is not None else "ill_formed",
                truncated=self.dialogue.truncated,
                feedback=failed.report.feedback,
                text=self.text,
                hits=self.hits,
                subgroup=self.subgroup,
            ),
        )


async def _reflect(
    context: EpisodeContext, rules: ErlRules, first: Attempt, failed: Attempt, revision: int
) -> _Reflection | None:
    """Reflect on a failed attempt; None when the prompt leaves no room in the context, also without what
    memory has."""
    hits: Sequence[MemoryHit] | None = None
    subgroup = context.subgroup if rules.retrieval else None
    if rules.retrieval and subgroup != FREE:
        hits = await context.retrieve(ErlPhase.RETRIEVAL, first.situation(failed.report.feedback))

    def prompt(remembered: Sequence[str]) -> Sequence[Message]:
        return rules.prompts.reflection(failed.instructions, failed.report, remembered)

    if hits:
        hits = context.with_room(hits, prompt)
    remembered = [hit.entry.text for hit in hits or ()]
    dialogue = Dialogue(context.chat, prompt(remembered), context.limits.end_token_ids)
    if context.room(dialogue) < 1:
        return None
    place = TurnKey(REFLECTION, ErlPhase.REFLECTION, revision)
    generation = await context.sample(dialogue, place, turn=0)
    text = dialogue.add_turn(generation).text
    return _Reflection(
        dialogue, rules.prompts.read_reflection(text), hits, subgroup, generation.finish_reason
    )


def _revision_prompt(rules: ErlRules, failed: Attempt, reflection: _Reflection | None) -> Opening:
    """The prompt of the attempt after a failed one; `reflection` is None where none was asked for."""
    prompts = rules.prompts
    if reflection is not None and reflection.text is None:
        return _without_notes(prompts)
    notes = [] if reflection is None or reflection.text is None else [reflection.text]
    if rules.show_failed_attempt:
        return lambda instructions, observation: prompts.retry(
            instructions, replace(failed.report, observation=observation), notes
        )
    return lambda instructions, observation: prompts.attempt(instructions, observation, notes)


_TURN = re.compile(r"\bturn (\d{1,6})\b", re.IGNORECASE)


def _turns_to_keep(failed: Attempt, reflection: _Reflection | None) -> int:
    """How many turns of the failed attempt come before the first one that the reflection names; 0 for none
    that it has."""
    named = _TURN.search(reflection.text) if reflection is not None and reflection.text is not None else None
    turn = int(named.group(1)) if named is not None else 1
    return turn - 1 if 1 <= turn <= len(failed.turns) else 0


def _without_notes(prompts: PromptFormat) -> Opening:
    return lambda instructions, observation: prompts.attempt(instructions, observation, [])
