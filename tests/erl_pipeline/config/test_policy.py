from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from erl_pipeline.config.policy import PolicyConfig, PretrainedPolicyConfig, TinyPolicyConfig

POLICY: TypeAdapter[TinyPolicyConfig | PretrainedPolicyConfig] = TypeAdapter(PolicyConfig)


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
