"""What cannot be combined with prompt evolution, and what its stages depend on."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from erl_pipeline.config.memory import NoteTrialConfig
from erl_pipeline.methods.prompt_evolution.settings import (
    PromptEvolutionConfig,
    episode_settings,
    first_attempt_settings,
)
from storage.errors import ConfigError
from tests.erl_pipeline.runs.small_runs import DECOUPLED, SMALL, small


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"pipeline": {"lag": 1}, **DECOUPLED}, r"pipeline\.lag: .* no update to sample beside"),
        ({"pipeline": {"max_age": 3}}, r"pipeline\.max_age: .* no update could get old trajectories"),
        ({"rollouts": {**SMALL["rollouts"], "refill": 2}}, r"rollouts\.refill: .* no update needs groups"),
        ({"evaluation": {"tasks": 2, "whole_episodes": True}}, r"evaluation\.whole_episodes: .* one attempt"),
        ({"policy": {"type": "pretrained", "model": "m", "lora": {}}}, r"policy\.lora: .* no adapter"),
        ({"replay": True}, "replay: method prompt_evolution cannot be combined with it, since it trains"),
        ({"distillation": {"form": "separate"}}, "distillation: method prompt_evolution cannot be combined"),
        ({"self_distillation": True}, "self_distillation: method prompt_evolution cannot be combined"),
        ({"experience": True}, "experience: method prompt_evolution cannot be combined with it"),
        ({"served_feedback": {"reflect": "run"}}, "method prompt_evolution has no memory of reflections"),
    ],
)
def test_what_has_no_meaning_without_an_update_is_refused(changes: dict[str, Any], refused: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=refused):
        small(method="prompt_evolution", **changes)


def test_how_proposals_are_tried_changes_no_episode() -> None:
    changed = PromptEvolutionConfig(candidates=2, tasks=3, attempts=1, margin=0.5)
    assert episode_settings(changed) == episode_settings(PromptEvolutionConfig())
    assert changed.trials == NoteTrialConfig(notes=2, tasks=3, attempts=1, margin=0.5, failures=True)


def test_how_instructions_are_asked_for_changes_no_evaluation() -> None:
    asked = PromptEvolutionConfig.model_validate(
        {"reflections": 3, "instruction_tokens": 9, "prompts": {"reflection_system": "Improve it."}}
    )
    plain = first_attempt_settings(PromptEvolutionConfig())
    assert first_attempt_settings(asked) == plain
    shown = PromptEvolutionConfig.model_validate({"prompts": {"second_attempt": "{{ notes[0] }}"}})
    assert first_attempt_settings(shown) != plain
