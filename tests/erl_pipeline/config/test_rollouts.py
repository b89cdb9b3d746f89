import pytest
from pydantic import ValidationError

from erl_pipeline.config.rollouts import SamplingConfig


@pytest.mark.parametrize("setting", ["top_p", "top_k", "min_p", "typical_p", "allowed_token_ids"])
def test_sampling_from_a_part_of_the_distribution_is_refused_with_the_reason(setting: str) -> None:
    with pytest.raises(
        ValidationError, match=rf"{setting} is not offered: .* probability of 0, and the ratio"
    ):
        SamplingConfig.model_validate({setting: 1})


@pytest.mark.parametrize("setting", ["repetition_penalty", "frequency_penalty", "logit_bias"])
def test_sampling_from_another_distribution_than_the_trainers_is_refused(setting: str) -> None:
    with pytest.raises(ValidationError, match=f"{setting} is not offered: .* compare two different things"):
        SamplingConfig.model_validate({setting: 1.5})


def test_rollouts_at_temperatures_that_engines_do_not_keep_are_refused() -> None:
    for temperature in (0.0, 1e-50, 0.009):
        with pytest.raises(ValidationError, match=r"greater than or equal to 0\.01"):
            SamplingConfig(temperature=temperature)
    assert SamplingConfig(temperature=0.01).temperature == 0.01
