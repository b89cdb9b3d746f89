"""All forms of tool calls that are read."""

from erl_pipeline.environments.tool_calls.hermes import HERMES
from erl_pipeline.environments.tool_calls.llama import LLAMA
from erl_pipeline.environments.tool_calls.mistral import MISTRAL
from erl_pipeline.environments.tool_calls.tagged import GLM, QWEN3_CODER

FORMS = (HERMES, LLAMA, MISTRAL, QWEN3_CODER, GLM)
