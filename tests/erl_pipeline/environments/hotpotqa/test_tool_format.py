"""Which protocol a policy gets, depending on its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.loading.load import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.hotpotqa.environment import for_template
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.mixture import ENVIRONMENT as MIXTURE
from erl_pipeline.runs.train import require_tools_are_known
from storage.errors import InputError
from tests.erl_pipeline.episodes.test_dialogue import CHATML, WITH_CALLS, chatml_tokenizer


@pytest.mark.parametrize(
    ("tool_format", "knows_tools", "is_plain"),
    [("auto", True, False), ("auto", False, True), ("template", True, False), ("plain", True, True)],
)
def test_the_setting_wins_over_the_template(tool_format: Any, knows_tools: bool, is_plain: bool) -> None:
    assert for_template(HotpotQAConfig(tool_format=tool_format), knows_tools).is_plain == is_plain


def test_parts_of_a_mixture_get_it_too() -> None:
    asked = {"parts": {"lake": {"environment": "frozen_lake"}, "wiki": {"environment": "hotpotqa"}}}
    found = MIXTURE.episodes.for_template(MIXTURE.settings.model_validate(asked), False)
    assert found.parts["wiki"].environment == HotpotQAConfig(tool_format="plain")
    assert found.parts["lake"].environment.type == "frozen_lake"


def config(folder: Path, *settings: str) -> RunConfig:
    """A run whose policy is in a folder."""
    return change_config(
        RunConfig.model_validate(
            {
                "name": "asking",
                "iterations": 1,
                "environment": {"type": "hotpotqa", "task_file": "questions.json"},
                "policy": {"type": "pretrained", "model": str(folder)},
            }
        ),
        settings,
    )


def saved(folder: Path, template: str) -> Path:
    """A folder with only a tokenizer, which has this chat template."""
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def test_tools_that_a_template_does_not_know_are_refused_before_the_start(tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", CHATML)
    with pytest.raises(InputError, match=r"tool_format: template; .* allowed with it are plain and auto"):
        require_tools_are_known(config(plain, "environment.tool_format=template"))
    require_tools_are_known(config(plain))
    require_tools_are_known(config(plain, "environment.tool_format=plain"))
    calls = CHATML.replace("{{ message['content'] | trim }}", WITH_CALLS)
    require_tools_are_known(config(saved(tmp_path / "calls", calls), "environment.tool_format=template"))
