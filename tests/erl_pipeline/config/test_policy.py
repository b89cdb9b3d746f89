from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from erl_pipeline.config.plugins import settings_of
from erl_pipeline.config.policy import (
    DemonstrationsWarmStart,
    MessagesWarmStart,
    PretrainedPolicyConfig,
    TinyPolicyConfig,
)

POLICY: TypeAdapter[TinyPolicyConfig | PretrainedPolicyConfig] = TypeAdapter(settings_of("policies"))


def test_the_type_chooses_the_settings() -> None:
    assert POLICY.validate_python({"type": "tiny", "layers": 2}) == TinyPolicyConfig(layers=2)
    assert POLICY.validate_python({"type": "pretrained", "model": "some/model"}) == PretrainedPolicyConfig(
        type="pretrained", model="some/model"
    )


def test_settings_of_the_other_type_are_refused() -> None:
    with pytest.raises(ValidationError, match="layers"):
        POLICY.validate_python({"type": "pretrained", "model": "some/model", "layers": 2})


def test_head_sizes_that_no_server_takes_are_refused() -> None:
    with pytest.raises(ValidationError, match="hidden_size: 64 with heads: 4: allowed are 128 and 256"):
        TinyPolicyConfig(hidden_size=64, heads=4)


def test_a_head_in_float32_is_for_weights_that_are_not() -> None:
    with pytest.raises(ValidationError, match="allowed with dtype: float32 is null"):
        PretrainedPolicyConfig(type="pretrained", model="some/model", head_dtype="float32")
    assert "head_dtype" not in PretrainedPolicyConfig(type="pretrained", model="some/model").model_dump()


def with_lora(**lora: object) -> PretrainedPolicyConfig | TinyPolicyConfig:
    return POLICY.validate_python({"type": "pretrained", "model": "some/model", "lora": lora})


def test_modules_are_the_same_setting_in_any_order() -> None:
    assert with_lora(target_modules=["v_proj", "q_proj"]) == with_lora(target_modules=["q_proj", "v_proj"])


@pytest.mark.parametrize(
    ("lora", "problem"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 513}, "rank"),
        ({"alpha": 0}, "alpha"),
        ({"target_modules": []}, "name at least one module"),
        ({"target_modules": ["q_proj", "q_proj"]}, "a module is named twice: q_proj, q_proj"),
        ({"target_modules": ["q proj"]}, "target_modules"),
        ({"dropout": 0.1}, "dropout"),
    ],
)
def test_settings_of_an_adapter_that_cannot_be_are_refused(lora: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        with_lora(**lora)


def test_the_learning_rate_rises_stays_and_falls() -> None:
    """One step rises to the peak of 1, which lasts until step 5 of 10; then each step is lower by 0.16, down
    to 0.2."""
    settings = MessagesWarmStart(
        type="messages",
        file="f",
        steps=10,
        learning_rate=1.0,
        warm_up_steps=1,
        decay_from=0.5,
        final_rate=0.2,
    )
    rates = [settings.rate(step) for step in range(1, 11)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 0.84, 0.68, 0.52, 0.36, 0.2])


def test_without_a_fall_the_rate_stays() -> None:
    settings = MessagesWarmStart(
        type="messages", file="f", steps=2, learning_rate=1.0, warm_up_steps=0, decay_from=1.0
    )
    assert [settings.rate(1), settings.rate(2)] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"first_attempts": 0, "noted_attempts": 0, "reflections": 0}, "one of them has to be above 0"),
        ({"swapped_notes": 0.8, "reshuffled_notes": 0.3}, "allowed is a sum of at most 1"),
    ],
)
def test_impossible_shares_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DemonstrationsWarmStart.model_validate({"type": "demonstrations", **values})


def given(**arguments: object) -> PretrainedPolicyConfig:
    return PretrainedPolicyConfig.model_validate(
        {"type": "pretrained", "model": "some/model", "template_arguments": arguments}
    )


def test_arguments_of_a_template_keep_their_types_and_are_the_same_in_any_order() -> None:
    found = given(thinking=False, budget=1, share=1.0, effort="1").template_arguments
    assert [*map(repr, found.values())] == ["1", "'1'", "1.0", "False"]
    assert [*found] == ["budget", "effort", "share", "thinking"]
    assert "template_arguments" not in given().model_dump()


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "strftime_now", "bos_token"])
def test_what_a_template_is_given_anyway_is_no_argument(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} is given to each chat template by the program"):
        given(**{name: "x"})


@pytest.mark.parametrize("argument", [{"a b": 1}, {"1a": 1}, {"x": None}, {"x": [1]}, {"x": float("nan")}])
def test_arguments_that_cannot_be_written_are_refused(argument: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="template_arguments"):
        given(**argument)
