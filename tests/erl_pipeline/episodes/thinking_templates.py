"""Chat templates of policies that think."""

from erl_pipeline.policies.chat_templates import with_arguments
from tests.erl_pipeline.episodes.test_dialogue import CHATML, WITH_CALLS

THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% set thought, said = '', m.content %}{% if '</think>' in said %}"
    "{% set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.last or thought %}<think>\n{{ thought }}\n</think>\n\n{% endif %}{{ said }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""A chat template that opens the thoughts itself, as Qwen3-Thinking-2507's does."""
HYBRID = CHATML.replace(
    WITH_CALLS,
    "{% if loop.last and message['role'] == 'assistant' %}<think>\n\n</think>\n\n{% endif %}" + WITH_CALLS,
).replace(
    "assistant\n{%",
    "assistant\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{%",
)
"""A chat template of Qwen3's form: with `enable_thinking` false it opens turns with empty thoughts, which it
writes before the last given turn alone."""
OFF = str(with_arguments(HYBRID, {"enable_thinking": False}))
