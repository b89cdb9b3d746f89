from __future__ import annotations

from erl_pipeline.config.prompts import JudgeFeedback
from erl_pipeline.environments.prompt_format import AttemptReport
from erl_pipeline.methods.erl.episode import judge_prompt

REPORT = AttemptReport(
    observation="@ &", trace="Step 1: action a", feedback="The attempt failed.", reward=0.0
)


def test_a_judge_sees_the_task_the_attempt_and_what_the_rules_say() -> None:
    judge = JudgeFeedback(
        type="judge", system="Judge.", template="{{ observation }} {{ trace }} {{ feedback }}"
    )
    assert judge_prompt(judge, "Act.", REPORT) == [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": "@ & Step 1: action a The attempt failed."},
    ]
