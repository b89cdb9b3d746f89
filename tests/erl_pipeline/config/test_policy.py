from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from erl_pipeline.config.plugins import settings_of
from erl_pipeline.config.policy import PretrainedPolicyConfig, TinyPolicyConfig

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
