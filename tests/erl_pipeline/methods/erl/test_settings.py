from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.rollouts import SamplingConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.episodes.context import RoleLimits
from erl_pipeline.methods.erl.settings import ErlConfig, episode_settings
from storage.errors import ConfigError
from tests.erl_pipeline.runs.small_runs import small

JUDGE = {"type": "judge", "url": "http://localhost:1", "model": "gpt"}


def limits(**settings: object) -> dict[str, RoleLimits]:
    method = plugins("methods")["erl"].value
    chosen = episode_settings(ErlConfig.model_validate(settings))
    return dict(method.role_limits(chosen, SamplingConfig(temperature=0.9, max_new_tokens=20)))


def test_all_roles_are_sampled_alike_unless_told_otherwise() -> None:
    assert set(limits().values()) == {RoleLimits(0.9, 20)}


def test_each_role_may_have_its_own_temperature_and_length() -> None:
    found = limits(
        sampling={
            "reflection": {"temperature": 0.7, "max_new_tokens": 200},
            "second_attempt": {"temperature": 0.6, "max_new_tokens": 500},
        }
    )
    assert found == {
        "first_attempt": RoleLimits(0.9, 20),
        "reflection": RoleLimits(0.7, 200),
        "second_attempt": RoleLimits(0.6, 500),
    }


def test_a_role_at_temperature_zero_cannot_be_trained() -> None:
    with pytest.raises(ValidationError, match=r"greater than or equal to 0\.01"):
        ErlConfig.model_validate({"sampling": {"reflection": {"temperature": 0.0}}})


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, False),
        ({"show_failed_attempt": True}, True),
        ({"reflection": False}, True),
        ({"reflection": False, "show_failed_attempt": False}, False),
    ],
)
def test_the_failed_attempt_is_shown_where_it_is_asked_for_or_nothing_else_is(
    settings: dict[str, object], shown: bool
) -> None:
    config = ErlConfig.model_validate(settings)
    assert config.shows_failed_attempt is shown
    assert episode_settings(config).show_failed_attempt is shown


def cold_start_retries(**changes: object) -> float | None:
    """The share of retries with which the cold start of a run's tiny policy is made."""
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.stages.training.first_checkpoint import COLD_START

    assert COLD_START.slice is not None
    sources = Sources(code={})
    return COLD_START.slice(small(**changes), sources).policy.cold_start.retries


def test_a_tiny_policy_is_shown_retries_where_the_method_has_them() -> None:
    assert cold_start_retries() is None
    assert cold_start_retries(method={"type": "erl", "reflection": False}) == 0.5
    assert cold_start_retries(method="rlvr") is None
    given = {**small().policy.model_dump(), "cold_start": {"steps": 4, "retries": 0.3}}
    assert cold_start_retries(policy=given, method="rlvr") == 0.3


def test_a_tiny_policy_that_was_shown_no_retries_is_refused() -> None:
    policy = {"type": "tiny", "cold_start": {"retries": 0.0}}
    with pytest.raises(ValidationError, match=r"policy\.cold_start\.retries: 0\.0 leaves out attempts"):
        small(method={"type": "erl", "reflection": False}, policy=policy)


def test_a_tiny_policy_cannot_read_a_judge_or_examples() -> None:
    with pytest.raises(ConfigError, match=r"method\.feedback\.type: judge writes sentences"):
        small(method={"type": "erl", "feedback": JUDGE})
    with pytest.raises(ConfigError, match=r"method\.memory\.examples: on; a policy of policy\.type: tiny"):
        small(method={"type": "erl", "memory": {"examples": True}})
    assert isinstance(small(), RunConfig)


@pytest.mark.parametrize(
    ("feedback", "message"),
    [
        ({"type": "judge", "model": "gpt"}, "gpt is a model of a server; give its url"),
        ({"type": "judge", "url": "http://localhost:1"}, "name the model that the server has"),
        ({**JUDGE, "url": "localhost:1"}, "allowed are addresses such as"),
        ({**JUDGE, "url": "http://me:secret@localhost"}, "settings are stored; put the key into an"),
        ({"type": "judge", "api_key_variable": "KEY"}, "it is for a server; give its url"),
        ({**JUDGE, "template": "{{ seed }}"}, "template: the template uses the unknown variable 'seed'"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_refused(feedback: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ErlConfig.model_validate({"feedback": feedback})


def test_an_address_may_end_as_those_of_openai_do() -> None:
    config = ErlConfig.model_validate({"feedback": {**JUDGE, "url": "http://localhost:1/v1/"}})
    assert config.feedback.model_dump()["url"] == "http://localhost:1"
