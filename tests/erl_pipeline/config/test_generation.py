import pytest
from pydantic import ValidationError

from erl_pipeline.config.rollouts import SamplingConfig
from erl_pipeline.engines.vllm.settings import VllmEngineConfig

SERVER = {"url": "http://gpu-1:8000"}


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


def test_greedy_rollouts_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"0; allowed: more than 0\.0 .* has no meaning"):
        SamplingConfig(temperature=0.0)


@pytest.mark.parametrize(
    "argument",
    ["--logprobs-mode=raw_logprobs", "--override_generation_config", "--port=1", "--no-enable-sleep-mode"],
)
def test_arguments_cannot_undo_what_the_pipeline_needs(argument: str) -> None:
    with pytest.raises(ValidationError, match="set by the pipeline"):
        VllmEngineConfig(arguments=(argument,))


def test_other_arguments_pass() -> None:
    arguments = ("--tensor-parallel-size=2", "--seed", "1", '--compilation-config={"level": 0}')
    assert VllmEngineConfig(arguments=arguments).arguments == arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--tensor-parallel-size 2",), "write --tensor-parallel-size=2, or two items"),
        (("--tensor-parallel-size=two",), "'two'; allowed is a whole number above 0"),
        (("--data-parallel-size",), "''; allowed is a whole number above 0"),
    ],
)
def test_arguments_that_no_server_can_read_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        VllmEngineConfig(arguments=arguments)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"servers": [SERVER], "sleep": True}, "a server that the run starts itself"),
        ({"servers": [SERVER], "lifecycle": "per_stage"}, "a server that the run starts itself"),
        ({"lifecycle": "per_stage", "sleep": True}, "allowed: lifecycle: persistent"),
    ],
)
def test_a_server_cannot_rest_in_two_ways_or_on_behalf_of_others(
    settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        VllmEngineConfig.model_validate(settings)
