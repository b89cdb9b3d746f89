"""Feedback of a judge: a language model that looks at a finished attempt."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from erl_pipeline.engines.chat_server import ChatAnswer, ChatFailure, ChatServer
from erl_pipeline.environments.messages import Message, answer_start
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.episodes.attempt import Attempt
from erl_pipeline.episodes.context import EpisodeContext, Outcome, TurnKey, trajectory
from erl_pipeline.episodes.dialogue import Dialogue
from storage.tables.trajectories import Trajectory

AskJudge = Callable[[str, AttemptReport], Sequence[Message]]
"""Makes the judge's prompt from an environment's instructions and the report of an attempt."""

_ILL_FORMED = "ill_formed"


@dataclass(frozen=True)
class Judgement:
    """What a judge said of an attempt; `text` is None where it said nothing.

    `finish_reason` is that of its last token, `ill_formed` (no letter in it), `judge_error`, `judge_timeout`,
    or `context` (its prompt fills the context of the policy that judges). `problem` is for people.
    """

    dialogue: Dialogue
    text: str | None
    finish_reason: str
    problem: str = ""

    def applied_to(self, attempt: Attempt) -> Attempt:
        """The attempt with the judge's words as its feedback; unchanged where the judge said nothing."""
        if self.text is None:
            return attempt
        return replace(attempt, report=replace(attempt.report, feedback=self.text))

    def row(self, context: EpisodeContext, place: TurnKey, attempt: Attempt, parent: str) -> Trajectory:
        """Its trajectory; `parent` is the attempt's. Its reward is always 0: it is never trained on."""
        return trajectory(
            context,
            place,
            self.dialogue,
            Outcome(
                parent=parent,
                reward=0.0,
                success=False,
                finish_reason=self.finish_reason,
                truncated=self.dialogue.truncated,
                feedback=self.problem or attempt.report.feedback,
                text=self.text,
            ),
        )


async def judge(context: EpisodeContext, place: TurnKey, attempt: Attempt, ask: AskJudge) -> Judgement:
    """Have a finished attempt judged, by the policy or by the context's chat server. A server's failure is
    recorded, not raised."""
    messages = ask(attempt.instructions, attempt.report)
    if context.chat_server is not None:
        return await _judge_on_server(context, context.chat_server, place, messages)
    dialogue = Dialogue(context.chat, messages, context.limits.end_token_ids)
    if context.room(dialogue) < 1:
        return Judgement(dialogue, None, "context", "the judge's prompt fills the policy's context")
    generation = await context.sample(dialogue, place, turn=0)
    return _judgement(dialogue, dialogue.add_turn(generation).text, generation.finish_reason)


async def _judge_on_server(
    context: EpisodeContext, server: ChatServer, place: TurnKey, messages: Sequence[Message]
) -> Judgement:
    limits = context.limits.by_role[place.role]
    # The server's tokens are not known, and need not be: a judge's conversation is never trained on.
    dialogue = Dialogue(context.chat, (), context.limits.end_token_ids)
    dialogue.messages += messages
    try:
        answer: ChatAnswer = await server.ask(
            messages,
            limits.temperature,
            limits.max_new_tokens,
            context.identity.seed(place.role, place.revision, 0),
        )
    except ChatFailure as failure:
        return Judgement(dialogue, None, f"judge_{failure.kind}", str(failure))
    text = context.chat.texts.text(answer.text)
    dialogue.messages.append({"role": "assistant", "content": text})
    dialogue.truncated = answer.cut_off
    return _judgement(dialogue, text[answer_start(text) :], "length" if answer.cut_off else "stop")


def _judgement(dialogue: Dialogue, said: str, finish_reason: str) -> Judgement:
    text = said.strip()
    if any(character.isalpha() for character in text):
        return Judgement(dialogue, text, finish_reason)
    return Judgement(dialogue, None, _ILL_FORMED)
