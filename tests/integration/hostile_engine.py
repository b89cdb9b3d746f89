"""A policy that gives hostile answers: the texts as tokens, with a tokenizer that knows every byte."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.environments.hotpotqa.environment import HotpotQA
from erl_pipeline.environments.interface import Task
from erl_pipeline.qualification.hostile_answers import HostileAnswer
from tests.erl_pipeline.episodes.test_dialogue import CHATML
from tests.random_models import random_llama

CONTEXT, NEW_TOKENS = 3072, 1024
END, START, PAD = "<|im_end|>", "<|im_start|>", "<pad>"
LONG = {unit * (2**16 // len(unit)) for unit in ("x", "9", "[", "[a] ", " ", "`", "<answer>", "\\boxed{")}
"""Texts of 64 KB that are one token each, so that a megabyte fits into the policy's context."""
_WITH_TOOLS = f"{START}system\n[{{"
_GOLD_SHARE = {"first_attempt": 0.1, "second_attempt": 0.4}


def save_policy(folder: Path) -> Path:
    """A random Llama of a few thousand weights. Its template knows tools."""
    tokenizer = _tokenizer()
    model = random_llama(
        len(tokenizer),
        hidden=16,
        intermediate=16,
        layers=1,
        heads=1,
        positions=CONTEXT,
        bos_token_id=tokenizer.convert_tokens_to_ids(START),
        eos_token_id=tokenizer.eos_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    special, long = [PAD, START, END], [_as_bytes(text) for text in sorted(LONG)]
    tokens = [*special, *sorted(ByteLevel.alphabet()), *long]
    backend = Tokenizer(BPE({token: index for index, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteDecoder()
    backend.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHATML,
    )


def _as_bytes(text: str) -> str:
    """ASCII text as a token of a byte-level vocabulary has it."""
    return text.replace(" ", "\u0120")


class HostileEngine:
    """Gives hostile answers in their order, again from the first when they are used up. Now and then it plays
    a whole attempt well, so that there is something to remember and to distil.

    Args:
        answers: those to prompts that offer no tool.
        calls: those to prompts that offer tools.
        gold: the first observation of a task -> the turns of a perfect attempt.
    """

    def __init__(
        self,
        answers: Sequence[HostileAnswer],
        calls: Sequence[HostileAnswer],
        gold: Mapping[str, Sequence[str]],
    ) -> None:
        self._tokenizer = _tokenizer()
        self._answers = {False: cycle(answers), True: cycle(calls)}
        self._gold = gold
        self._bytes = dict(zip(range(256), map(self._id, _alphabet()), strict=True))
        self._whole = {text: self._id(_as_bytes(text)) for text in LONG}
        self._whole |= {text: self._id(text) for text in (START, END, PAD)}
        self._well_played: dict[str, list[str]] = {}
        self.given: list[tuple[int, ...]] = []
        self.hostile = 0

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer every request, in order."""
        return [self._answer(request) for request in requests]

    def text(self, token_ids: Sequence[int]) -> str:
        """What an answer says, as the policy's tokenizer reads it."""
        ids = [token for token in token_ids if token not in self._tokenizer.all_special_ids]
        return str(self._tokenizer.decode(ids, skip_special_tokens=False)).strip()

    def _answer(self, request: GenerationRequest) -> Generation:
        text = self._gold_turn(request)
        if text is None:
            begins = str(self._tokenizer.decode(request.prompt_token_ids[: len(_WITH_TOOLS)]))
            text = next(self._answers[begins.startswith(_WITH_TOOLS)]).after("Question? ")
            self.hostile += 1
        ids = self._encoded(text)
        ids = [*ids[: ids.index(self._end)], self._end] if self._end in ids else [*ids, self._end]
        whole = len(ids) <= request.max_new_tokens
        kept = tuple(ids if whole else ids[: request.max_new_tokens])
        self.given.append(kept)
        return Generation(kept, (-5.5,) * len(kept), "stop" if whole else "length")

    def _gold_turn(self, request: GenerationRequest) -> str | None:
        name = request.conversation
        if name not in self._well_played:
            share = _GOLD_SHARE.get(name.rsplit("/", 2)[1], 0.0) if request.temperature else 0.0
            turns: Sequence[str] = ()
            if random.Random(name).random() < share:
                prompt = str(self._tokenizer.decode(request.prompt_token_ids))
                turns = next((gold for told, gold in self._gold.items() if told in prompt), ())
            self._well_played[name] = list(turns)
        left = self._well_played[name]
        return left.pop(0) if left else None

    def _encoded(self, text: str) -> list[int]:
        for whole, token in self._whole.items():
            if whole in text:
                before, _, after = text.partition(whole)
                return [*self._encoded(before), token, *self._encoded(after)]
        return [self._bytes[byte] for byte in text.encode("utf-8", "surrogatepass")]

    @property
    def _end(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def _id(self, token: str) -> int:
        return int(self._tokenizer.convert_tokens_to_ids(token))


def _alphabet() -> list[str]:
    """The character that a byte-level vocabulary has for each byte, as GPT-2 made it."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (chr(256 + number) for number in range(256))
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]


def gold_turns(plugin: Any, settings: Any, tasks: Sequence[Task]) -> dict[str, Sequence[str]]:
    """The first observation of each task -> the turns of a perfect attempt, for those that have one."""
    found: dict[str, Sequence[str]] = {}
    for task in tasks:
        part, own = plugin.part(settings, task)
        answers = part.plugin.gold_answers
        gold = None if answers is None else answers.right(part.settings, own)
        if gold is None:
            continue
        if own.environment == "hotpotqa":  # It opens only with its search index.
            told = HotpotQA(part.settings, own, lambda query: []).reset()
        else:
            told = asyncio.run(part.plugin.open(part.settings, own).reset())
        found[told] = [gold] if isinstance(gold, str) else gold
    return found
