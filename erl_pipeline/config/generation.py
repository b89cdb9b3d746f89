"""How tokens are drawn from a policy, whatever engine draws them."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import Settings

_CUTS_SUPPORT = (
    "it gives tokens that the policy could draw a probability of 0, and the ratio of the trained policy to "
    "the one that sampled has no meaning there"
)
_BENDS_DISTRIBUTION = (
    "it makes a token's probability depend on the text around it in a way that the trainer does not compute, "
    "so that the ratio of the trained policy to the one that sampled would compare two different things"
)
_REFUSED_SAMPLING = {
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "typical_p", "bad_words", "allowed_token_ids"), _CUTS_SUPPORT
    ),
    **dict.fromkeys(
        ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"), _BENDS_DISTRIBUTION
    ),
}
"""Settings that other samplers have, and why training on what they sample would be wrong."""


class SamplingConfig(Settings):
    """How tokens are drawn: from the whole distribution, at a temperature. Settings that cut or distort the
    distribution (`top_p`, `top_k`, penalties, ...) are refused, because the update divides by the probability
    with which a token was drawn."""

    temperature: float = Field(default=1.0, le=2.0)
    """Divides the logits before the softmax; stored log-probabilities include it. More than 0."""
    max_new_tokens: int = Field(default=8, ge=1)
    """The most tokens in one turn of an attempt."""

    @model_validator(mode="before")
    @classmethod
    def _ratio_has_a_meaning(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name in _REFUSED_SAMPLING:
                raise ValueError(f"{name} is not offered: {_REFUSED_SAMPLING[name]}; leave it out")
        return values

    @field_validator("temperature")
    @classmethod
    def _samples(cls, temperature: float) -> float:
        if temperature <= 0.0:
            raise ValueError(
                f"{temperature:g}; allowed: more than 0.0 (at 0 the most probable token is taken each time: "
                "all attempts of a group are alike, and the ratio to such a policy has no meaning)"
            )
        return temperature
