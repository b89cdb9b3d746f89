"""The tiny policy: a stock GPT-2, which transformers trains and vLLM serves, its tokenizer with one token for
each word of an environment, and conversations as its tokens.

Learned positions suit prompts of fixed width: with rotary positions the cold start needs several
times as many steps. The head is untied, since servers may keep a stale tied head when weights are
swapped.
"""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.environments.demonstrations import Demonstration

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


def build_model(
    policy: TinyPolicyConfig, tokenizer: PreTrainedTokenizerFast, positions: int, seed: int
) -> GPT2LMHeadModel:
    """A network with random weights that depend on `seed` alone."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=positions,
        n_embd=policy.hidden_size,
        n_layer=policy.layers,
        n_head=policy.heads,
        activation_function="relu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)


_WORTH_SHARING = 0.5  # share of a conversation that the next one must begin with as well


@dataclass(frozen=True)
class Batch:
    """Conversations as tokens; each row holds one, or several that begin alike.

    `token_ids`, `trained` and `positions` are `[rows, time]`, padded on the right. `attention` is
    `[rows, 1, time, time]` and true where a token (third dimension) sees another (fourth): the common
    beginning, and what came before in its own conversation. None: each row is one conversation, in which a
    token sees all before it.
    """

    token_ids: torch.Tensor
    trained: torch.Tensor
    positions: torch.Tensor
    attention: torch.Tensor | None


_Conversation = tuple[list[str], list[bool]]
"""Words, and which of them are trained."""


@dataclass(frozen=True)
class _Row:
    """One row of words. `branch` is 0 for the common beginning, then the number of the conversation, from
    1."""

    words: list[str]
    trained: list[bool]
    positions: list[int]
    branch: list[int]


def to_words(demonstration: Demonstration) -> tuple[list[str], list[bool]]:
    """A conversation as the tokenizer's words, and which of them are trained: what the assistant says."""
    words, trained = [BOS], [False]
    for message in demonstration:
        said = message["content"].split()
        if message["role"] == "assistant":
            words += [ASSISTANT, *said, END]
            trained += [False, *[True] * (len(said) + 1)]
        else:
            words += [USER, *said]
            trained += [False] * (len(said) + 1)
    return words, trained


def to_batch(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast) -> Batch:
    """Conversations as one batch, each in a row of its own."""
    return _stacked([_alone(to_words(each)) for each in demonstrations], tokenizer, shared=False)


def to_batches(demonstrations: Sequence[Demonstration], tokenizer: PreTrainedTokenizerFast) -> list[Batch]:
    """The same conversations at less cost: the single ones, and those that share a row.

    Neighbours that begin alike, such as reflections on the same attempt with different memories, share a row,
    so that their beginning is computed once. What is learned is the same.
    """
    groups = _alike([to_words(each) for each in demonstrations])
    single = [_alone(group[0]) for group in groups if len(group) == 1]
    together = [_together(group) for group in groups if len(group) > 1]
    batches = [_stacked(single, tokenizer, shared=False)] if single else []
    return [*batches, _stacked(together, tokenizer, shared=True)] if together else batches


def _stacked(rows: Sequence[_Row], tokenizer: PreTrainedTokenizerFast, *, shared: bool) -> Batch:
    ids = tokenizer.get_vocab()
    shape = len(rows), max(len(row.words) for row in rows)
    token_ids = torch.full(shape, tokenizer.pad_token_id, dtype=torch.long)
    trained = torch.zeros(shape, dtype=torch.bool)
    positions = torch.zeros(shape, dtype=torch.long)
    branch = torch.zeros(shape, dtype=torch.long)
    for number, row in enumerate(rows):
        length = len(row.words)
        token_ids[number, :length] = torch.tensor([ids[word] for word in row.words])
        trained[number, :length] = torch.tensor(row.trained)
        positions[number, :length] = torch.tensor(row.positions)
        branch[number, :length] = torch.tensor(row.branch)
    if not shared:
        return Batch(token_ids, trained, positions, None)
    causal = torch.ones(shape[1], shape[1], dtype=torch.bool).tril()
    seen = (branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])
    return Batch(token_ids, trained, positions, (causal & seen)[:, None])


def _alike(conversations: Sequence[_Conversation]) -> list[list[_Conversation]]:
    """Groups of neighbours, each of which shares enough with the one before it."""
    groups: list[list[_Conversation]] = []
    for words, trained in conversations:
        shared = _common([groups[-1][-1][0], words]) if groups else 0
        if shared > _WORTH_SHARING * len(words):
            groups[-1].append((words, trained))
        else:
            groups.append([(words, trained)])
    return groups


def _common(texts: Sequence[Sequence[str]]) -> int:
    """How many words all of them begin with."""
    return len(list(takewhile(lambda words: len(set(words)) == 1, zip(*texts, strict=False))))


def _alone(conversation: _Conversation) -> _Row:
    words, trained = conversation
    return _Row(words, trained, list(range(len(words))), [0] * len(words))


def _together(conversations: Sequence[_Conversation]) -> _Row:
    """The common beginning once, then the rest of each conversation.

    The rest begins with a word that is not trained: the word before it in the row may belong to another
    conversation, which cannot predict it.
    """
    whole = [words for words, _ in conversations]
    common = min(_common(whole), *(trained.index(True) - 1 for _, trained in conversations))
    row = _Row(whole[0][:common], [False] * common, list(range(common)), [0] * common)
    for number, (words, trained) in enumerate(conversations, start=1):
        row.words.extend(words[common:])
        row.trained.extend(trained[common:])
        row.positions.extend(range(common, len(words)))
        row.branch.extend([number] * (len(words) - common))
    return row
