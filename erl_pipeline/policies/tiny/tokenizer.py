"""The tiny policy's tokenizer: one token for each word of an environment, and its chat template."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

BOS = "<bos>"
END = "<end>"
PAD = "<pad>"
USER = "<user>"
ASSISTANT = "<assistant>"
OWN_WORDS = (PAD, BOS, END, USER, ASSISTANT)

CHAT_TEMPLATE = (
    "<bos>{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} <assistant> {{ message['content'] }} <end>"
    "{% else %} <user> {{ message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %} <assistant>{% endif %}"
)


def build_tokenizer(words: Sequence[str], context_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer that splits at spaces. An unknown word is an error, never a silent stand-in.

    `words` follow the tokenizer's own in the order of ids. Raises `ValueError` for a word that comes twice.
    """
    vocabulary = [*OWN_WORDS, *words]
    ids = {word: index for index, word in enumerate(vocabulary)}
    if len(ids) < len(vocabulary):
        twice = next(word for word in vocabulary if vocabulary.count(word) > 1)
        raise ValueError(f"the word {twice!r} comes twice in the vocabulary of the tiny policy")
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
