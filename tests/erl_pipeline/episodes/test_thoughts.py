"""Episodes of a policy that writes thoughts before its answers: what its environment, its reflections and its
rows have of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tokenizers import AddedToken

from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.engines.interface import Generation
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.interface import Environment, Transition
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema, user_message
from erl_pipeline.environments.prompt_format import ChatPrompts
from erl_pipeline.episodes.agent_attempt import _trace
from erl_pipeline.episodes.context import EpisodeContext, EpisodeIdentity, SampleRequest
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.episodes.gateway.sequences import SampledSequence
from erl_pipeline.episodes.guarded_environment import GuardedEnvironment
from erl_pipeline.methods.erl.episode import ErlRules, run_episode
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import PROVENANCE, TASK, limits
from tests.erl_pipeline.episodes.scripted_environment import Scripted, ends
from tests.erl_pipeline.episodes.test_dialogue import (
    CHATML,
    SEARCH,
    chatml_tokenizer,
    end_ids,
    said,
)
from tests.erl_pipeline.episodes.thinking_templates import HYBRID, OFF, THINKS

LAKE = FrozenLakeConfig(format="prose", action_mode="step", world_seed=0)


def play(
    template: str, answers: Sequence[str], environment: Environment | None = None
) -> tuple[list[Trajectory], list[str]]:
    """One episode of ERL, by default on the board of `TASK` (right is `a`, down is `b`), whose policy gives
    these answers, each with its end but those that end in thoughts; its rows, and the prompts as texts."""
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = template
    remaining, prompts = list(answers), list[str]()

    async def ask(asked: SampleRequest) -> Generation:
        prompts.append("".join(tokenizer.convert_ids_to_tokens(asked.request.prompt_token_ids)))
        text = remaining.pop(0)
        whole = "</think>" in text or "<think>" not in template + text
        return said(tokenizer, f"{text}<|im_end|>" if whole else text, "stop" if whole else "length")

    async def ask_memory(_: object) -> list[object]:
        raise AssertionError

    context = EpisodeContext(
        identity=EpisodeIdentity(TASK, 0, PROVENANCE),
        environment=GuardedEnvironment(lambda: environment or ENVIRONMENT.open(LAKE, TASK), 60.0),
        chat=ChatTokenizer(tokenizer),
        limits=replace(limits(context_length=16_384), end_token_ids=end_ids(tokenizer)),
        ask_policy=ask,
        ask_memory=ask_memory,  # type: ignore[arg-type]
    )
    rules = ErlRules(ChatPrompts(PromptTemplates()), max_revisions=1)
    rows = asyncio.run(run_episode(context, rules))
    assert not remaining
    return rows, prompts


@pytest.mark.parametrize(("template", "begins"), [(CHATML, "<think>\n"), (THINKS, "")])
def test_an_environment_reads_the_answer_and_the_reflection_is_shown_it(template: str, begins: str) -> None:
    """Its thoughts name another move than its answer. The first attempt falls into the hole below the start;
    the second takes two steps to the right."""
    answers = [
        f"{begins}Right would be [a].\n</think>\n\n[b]",
        f"{begins}What is b?\n</think>\n\nb leads down.",
        f"{begins}Not [b].\n</think>\n\n[a]",
        f"{begins}Not [c].\n</think>\n\nOnce more: [a]",
    ]
    (first, reflection, second), prompts = play(template, answers)
    assert (first.reward, first.finish_reason, second.reward, second.success) == (0.0, "done", 1.0, True)
    assert reflection.text == "b leads down."
    asked = prompts[1].partition("<|im_start|>user")[2]
    assert "Step 1: action b" in asked
    assert "Right would be" not in asked
    assert "b leads down." in prompts[2]
    assert "What is b?" not in prompts[2]
    # Rows have all that was said, and what is said later stands behind all of it.
    assert json.loads(first.messages)[-1]["content"] == answers[0]
    assert f"{answers[2]}<|im_end|>" in prompts[3]
    assert sum(first.response_mask) == len(answers[0]) + 1


@pytest.mark.parametrize(("template", "begins"), [(CHATML, "<think>\n"), (THINKS, "")])
def test_a_reward_that_compares_the_whole_answer_is_for_the_answer(template: str, begins: str) -> None:
    async def compares(turn: AssistantTurn) -> Transition:
        return ends(reward=float(turn.text == "4"))

    (row,), _ = play(template, [f"{begins}2+2\n</think>\n\n4"], Scripted(on_step=compares))
    assert (row.reward, row.success) == (1.0, True)
    assert json.loads(row.messages)[-1]["content"] == f"{begins}2+2\n</think>\n\n4"


@pytest.mark.parametrize(("template", "begins"), [(CHATML, "<think>\n"), (THINKS, "")])
def test_thoughts_that_do_not_end_are_no_answer(template: str, begins: str) -> None:
    """The moves in them are not made: each turn is one in the wrong format, until the steps are used up."""
    cut_off = f"{begins}Right is [a], so [a]"
    (first, reflection), _ = play(template, [*[cut_off] * 6, f"{begins}I do not know"])
    assert (first.reward, first.truncated, first.finish_reason) == (0.0, True, "done")
    assert json.loads(first.messages)[-1]["content"] == f"<think>{cut_off.removeprefix('<think>')}"
    assert (reflection.text, reflection.finish_reason) == (None, "ill_formed")


def test_what_a_reflection_is_shown_of_an_agent_has_no_thoughts() -> None:
    sequence = SampledSequence((), (), 0, 1)
    sequence.messages = [{"role": "assistant", "content": "<think>\nUp?\n</think>\n\ndown"}]
    assert _trace([sequence]) == "assistant: down"


def test_tools_are_known_also_where_the_template_ends_thoughts_before_the_policy_speaks() -> None:
    tokenizer = chatml_tokenizer()
    for template in (HYBRID, OFF):
        tokenizer.chat_template = template
        assert ChatTokenizer(tokenizer).knows_tools


@pytest.mark.parametrize(
    ("template", "opens"), [(CHATML, False), (HYBRID, False), (OFF, False), (THINKS, True)]
)
def test_whether_thoughts_are_opened_is_what_stands_before_the_policy_speaks(
    template: str, opens: bool
) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = template
    chat = ChatTokenizer(tokenizer)
    assert chat.thinks_after(chat.prompt([user_message("<think>")])) == opens


def test_a_turn_that_ends_within_thoughts_that_the_template_opens_has_no_answer() -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = THINKS
    dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("2+2?")], end_ids(tokenizer))
    cut_off = dialogue.add_turn(said(tokenizer, "2+2 is 4, so", "length"))
    dialogue.add_messages([user_message("and?")])
    whole = dialogue.add_turn(said(tokenizer, "4\n</think>\n\nIt is 4.<|im_end|>"))
    assert (cut_off.text, whole.text) == ("", "It is 4.")
    assert [each["content"] for each in dialogue.messages] == [
        "2+2?",
        "<think>2+2 is 4, so",  # Else a reader of messages would take it for an answer.
        "and?",
        "4\n</think>\n\nIt is 4.",
    ]
    # All that was sampled is trained, thoughts too: 12 characters, then 20 and the end.
    assert sum(dialogue.response_mask) == 12 + 20 + 1


def test_a_template_may_open_thoughts_by_what_a_message_says() -> None:
    """As Nemotron-Nano-v2's does: `/no_think` ends them before the policy speaks."""
    tokenizer = chatml_tokenizer()
    opening = "<think>\n{% if '/no_think' in messages[-1].content %}</think>\n{% endif %}"
    tokenizer.chat_template = CHATML.replace("assistant\n{% endif %}", f"assistant\n{opening}{{% endif %}}")
    dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("2+2? /no_think")], end_ids(tokenizer))
    first = dialogue.add_turn(said(tokenizer, "4<|im_end|>"))
    dialogue.add_messages([user_message("and?")])
    second = dialogue.add_turn(said(tokenizer, "4</think>5<|im_end|>"))
    assert [(turn.thoughts, turn.text) for turn in (first, second)] == [("", "4"), ("4</think>", "5")]


@pytest.mark.parametrize("tools", [(), (SEARCH,)])
def test_thoughts_are_told_from_the_answer_also_where_their_marks_are_special_tokens(
    tools: tuple[ToolSchema, ...],
) -> None:
    tokenizer = chatml_tokenizer()
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in ("<think>", "</think>", "<pad>")])
    dialogue = Dialogue(ChatTokenizer(tokenizer), [user_message("2+2?")], end_ids(tokenizer), tools)
    turn = dialogue.add_turn(said(tokenizer, "<think>3?</think><pad>4<|im_end|>"))
    assert (turn.thoughts, turn.text) == ("<think>3?</think>", "4")
