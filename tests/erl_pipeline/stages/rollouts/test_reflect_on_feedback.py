"""What a reflection on a served conversation is shown of it."""

from __future__ import annotations

import json
from dataclasses import replace

from erl_pipeline.stages.rollouts.reflect_on_feedback import conversation_report
from tests.erl_pipeline.episodes.script import play


def test_answers_are_shown_without_thoughts() -> None:
    messages = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\n3?\n</think>\n\n4."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]
    row = replace(play(["right a", "right a"])[0][0], messages=json.dumps(messages))
    told, report = conversation_report(row, ["5."])
    assert (told, report.observation) == ("2+2?", "2+2?")
    assert report.trace == "assistant: 4.\nuser: Sure?\nassistant: Yes."
    assert report.feedback.endswith("It should have been: 5.")
