"""Whether a run's policy can use the tools that its environment is configured to offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.policy import PretrainedPolicyConfig
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig


def require_tools_are_known(config: RunConfig) -> None:
    """Raise `InputError` if the environment's settings ask for tools that the policy's chat template does not
    know. The tokenizer is read only if they ask for tools."""
    plugin = plugins("environments")[config.environment.type].value
    if not isinstance(config.policy, PretrainedPolicyConfig):
        plugin.episodes.for_template(config.environment, False)
        return
    try:
        plugin.episodes.for_template(config.environment, False)
    except InputError:
        from erl_pipeline.episodes.dialogue import ChatTokenizer
        from erl_pipeline.policies.pretrained import load_tokenizer

        tokenizer = load_tokenizer(config.policy.model)
        plugin.episodes.for_template(config.environment, ChatTokenizer(tokenizer).knows_tools)
