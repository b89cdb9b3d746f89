"""The tiny policy's tokenizer: one token for each word of the compact format, and its chat template."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.board import DIRECTIONS
from erl_pipeline.environments.frozen_lake.compact import ENDINGS, OUTCOMES, PADDING, cell_word
from erl_pipeline.environments.frozen_lake.tiny.prompts import FIELD_WORDS, UNKNOWN
from storage.errors import ConfigError

BOS = "<bos>"
END = "<end>"
PAD = "<pad>"
USER = "<user>"
ASSISTANT = "<assistant>"

CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} <assistant> {{ message['content'] }} <end>"
    "{% else %} <user> {{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
)


def vocabulary(config: FrozenLakeConfig) -> list[str]:
    """Every word of the compact format of these settings; a word's place is its token id.

    Raises `ConfigError` where a chosen symbol or action word is a word of the format itself.
    """
    cells = [cell_word(cell) for cell in range(config.rows[1] * config.column_range[1])]
    fixed = [PAD, BOS, END, USER, ASSISTANT, PADDING, UNKNOWN, *FIELD_WORDS, *DIRECTIONS]
    fixed += [word for word in OUTCOMES if word not in ENDINGS]
    fixed += [*ENDINGS, *cells]
    chosen = [*config.symbols, *config.action_words]
    for word in chosen:
        if word in fixed or chosen.count(word) > 1:
            raise ConfigError(
                f"environment.symbols and environment.action_words: {word!r} has another meaning in "
                "format: compact; allowed are words that it does not use"
            )
    return fixed + chosen


def build_tokenizer(config: FrozenLakeConfig, context_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer that splits at spaces. An unknown word is an error, never a silent stand-in."""
    ids = {word: index for index, word in enumerate(vocabulary(config))}
    tokenizer = Tokenizer(WordLevel(ids))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context_length,
        clean_up_tokenization_spaces=False,
    )
