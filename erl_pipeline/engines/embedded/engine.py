"""The embedded engine: a transformers model in this process, with a key-value cache.

A batch of conversations keeps its cache between turns. A cached batch is a tensor of *slots* with a
mask: rows of different lengths are padded on the left, and the new tokens of a later turn are padded
on the left again, inside their own block. Such holes do no harm where each layer attends to all tokens
before, since attention follows the mask and positions are given explicitly. A sliding window counts slots
instead of tokens, and a recurrent state takes up what is in them: models with such layers compute each
turn's prompts anew.
"""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache, DynamicLayer, PreTrainedModel

from erl_pipeline.engines.embedded.short_query_attention import fast_decoding
from erl_pipeline.engines.interface import Generation, GenerationRequest
from erl_pipeline.engines.sampling import draw_tokens, uniform_stream
from storage.errors import EngineError, Interrupted


@dataclass
class _CachedBatch:
    """Conversations whose keys and values are held.

    `rows` maps a conversation to its row, and `token_ids[row]` are the tokens of the row that are in the
    cache; `slot_mask` is `[rows, slots]`, 1 where a slot holds a token.
    """

    cache: DynamicCache
    rows: dict[str, int]
    token_ids: list[tuple[int, ...]]
    slot_mask: torch.Tensor


class TransformersEngine:
    """Generates in batches with the model it was given; one call at a time."""

    def __init__(
        self,
        model: PreTrainedModel,
        stop_token_ids: frozenset[int],
        max_batch_sequences: int,
        stop: threading.Event | None = None,
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self._model = model.eval()
        self._stop_token_ids = torch.tensor(sorted(stop_token_ids), device=model.device)
        self._max_batch_sequences = max_batch_sequences
        self._stop = stop
        self._on_tokens = on_tokens
        # The types are compared exactly: layers with a window are a subclass. A model whose attention is its
        # own may count places in the cache, where rows of different length leave holes.
        layers = DynamicCache(config=model.config).layers
        is_plain = all(type(layer) is DynamicLayer for layer in layers)
        self._keeps_caches = is_plain and model._supports_attention_backend
        self._cached: list[_CachedBatch] = []

    @torch.inference_mode()
    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer the requests, in order.

        Conversations that continue are answered from the caches of the previous call, if all layers of the
        model attend to all tokens; all others are cut into batches of similar length. Raises `Interrupted`
        when the run was asked to stop.
        """
        answers: dict[int, Generation] = {}
        kept: list[_CachedBatch] = []
        fresh = set(range(len(requests)))
        with fast_decoding(self._model):
            for batch in self._cached:
                continuing = [i for i in sorted(fresh) if _continues(batch, requests[i])]
                if continuing:
                    fresh.difference_update(continuing)
                    kept.append(self._answer(batch, requests, continuing, answers))
            by_length = sorted(fresh, key=lambda i: (len(requests[i].prompt_token_ids), i))
            for start in range(0, len(by_length), self._max_batch_sequences):
                chunk = by_length[start : start + self._max_batch_sequences]
                kept.append(self._answer(None, requests, chunk, answers))
        self._cached = kept if self._keeps_caches else []
        return [answers[i] for i in range(len(requests))]

    def _answer(
        self,
        known: _CachedBatch | None,
        requests: Sequence[GenerationRequest],
        chosen: Sequence[int],
        answers: dict[int, Generation],
    ) -> _CachedBatch:
        """Prefill each prompt once, then decode until every request is answered; fills `answers`."""
        device = self._model.device
        mine = [requests[i] for i in chosen]
        firsts: dict[tuple[int, ...], GenerationRequest] = {}
        for request in mine:
            firsts.setdefault(request.prompt_token_ids, request)
        if known is None:
            batch = _CachedBatch(
                cache=DynamicCache(config=self._model.config),
                rows={},
                token_ids=[()] * len(firsts),
                slot_mask=torch.zeros(len(firsts), 0, dtype=torch.long, device=device),
            )
        else:
            batch = _take_rows(known, [known.rows[first.conversation] for first in firsts.values()])
        logits = self._prefill(batch, list(firsts))
        places = {prompt: place for place, prompt in enumerate(firsts)}
        rows = [places[request.prompt_token_ids] for request in mine]
        batch = _take_rows(batch, rows)
        if len(firsts) < len(mine):
            logits = logits[torch.tensor(rows, device=device)]
        batch.rows = {request.conversation: row for row, request in enumerate(mine)}
        answers.update(zip(chosen, self._decode(batch, logits, mine), strict=True))
        return batch

    def _prefill(self, batch: _CachedBatch, prompts: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Extend each row's cache to the end of its prompt; logits `[rows, vocabulary]` of the next token."""
        device = self._model.device
        blocks = [prompt[len(known) :] for prompt, known in zip(prompts, batch.token_ids, strict=True)]
        width = max(len(block) for block in blocks)
        # Zeros pad each block on its left; the mask hides them.
        input_ids = torch.tensor([(0,) * (width - len(block)) + block for block in blocks])
        block_mask = torch.tensor([[0] * (width - len(block)) + [1] * len(block) for block in blocks])
        input_ids, block_mask = input_ids.to(device), block_mask.to(device)
        lengths = batch.slot_mask.sum(dim=1)  # [rows], tokens known so far
        positions = (lengths[:, None] + block_mask.cumsum(dim=1) - 1).clamp_(min=0)
        batch.slot_mask = torch.cat([batch.slot_mask, block_mask], dim=1)
        batch.token_ids = list(prompts)
        return self._forward(batch, input_ids, positions)

    def _forward(self, batch: _CachedBatch, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits `[rows, vocabulary]` of the token after the last of `input_ids`."""
        if self._stop is not None and self._stop.is_set():
            raise Interrupted
        output = self._model(
            input_ids=input_ids,
            attention_mask=batch.slot_mask,
            position_ids=positions,
            past_key_values=batch.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        last: torch.Tensor = output.logits[:, -1]
        return last

    def _decode(
        self, batch: _CachedBatch, logits: torch.Tensor, mine: Sequence[GenerationRequest]
    ) -> list[Generation]:
        """Draw tokens until every row has stopped. `logits`: `[rows, vocabulary]`, of the first token."""
        device = self._model.device
        budget = max(request.max_new_tokens for request in mine)
        uniforms = torch.from_numpy(np.stack([uniform_stream(request.seed, budget) for request in mine])).to(
            device
        )  # float64
        temperatures = torch.tensor([request.temperature for request in mine], device=device)
        limits = torch.tensor([request.max_new_tokens for request in mine], device=device)
        lengths = batch.slot_mask.sum(dim=1, keepdim=True)
        running = torch.ones(len(mine), dtype=torch.bool, device=device)
        count = len(mine)
        drawn, drawn_logprobs, live = [], [], []
        for step in range(budget):
            tokens, logprobs = draw_tokens(logits, temperatures, uniforms[:, step])
            drawn.append(tokens)
            drawn_logprobs.append(logprobs)
            live.append(running)
            if self._on_tokens is not None:
                self._on_tokens(count)
            running = running & ~torch.isin(tokens, self._stop_token_ids) & (step + 1 < limits)
            count = int(running.sum())
            if not count:
                break
            # A row that stopped feeds a masked token, so that the others can go on.
            batch.slot_mask = torch.cat([batch.slot_mask, running[:, None].long()], dim=1)
            logits = self._forward(batch, tokens[:, None], lengths)
            lengths = lengths + running[:, None]
        return self._cut(
            batch, mine, torch.stack(drawn, 1), torch.stack(drawn_logprobs, 1), torch.stack(live, 1)
        )

    def _cut(
        self,
        batch: _CachedBatch,
        mine: Sequence[GenerationRequest],
        drawn: torch.Tensor,
        logprobs: torch.Tensor,
        live: torch.Tensor,
    ) -> list[Generation]:
        """The answers: each row's tokens up to where it stopped. `drawn`, `logprobs`, `live`:
        `[rows, steps]`."""
        stop_ids = set(self._stop_token_ids.tolist())
        counts = live.sum(dim=1).tolist()
        known = batch.slot_mask.sum(dim=1).tolist()
        all_drawn, all_logprobs = drawn.tolist(), logprobs.tolist()
        answers = []
        for row, request in enumerate(mine):
            tokens = tuple(all_drawn[row][: counts[row]])
            answers.append(
                Generation(
                    token_ids=tokens,
                    logprobs=tuple(all_logprobs[row][: counts[row]]),
                    finish_reason="stop" if tokens[-1] in stop_ids else "length",
                )
            )
            batch.token_ids[row] = (request.prompt_token_ids + tokens)[: known[row]]
        return answers


def _continues(batch: _CachedBatch, request: GenerationRequest) -> bool:
    row = batch.rows.get(request.conversation)
    if row is None:
        return False
    known = batch.token_ids[row]
    return len(known) < len(request.prompt_token_ids) and request.prompt_token_ids[: len(known)] == known


def _take_rows(batch: _CachedBatch, rows: Sequence[int]) -> _CachedBatch:
    """These rows of a batch, in this order; a row may be taken more than once."""
    if list(rows) != list(range(len(batch.token_ids))):
        index = torch.tensor(rows, device=batch.slot_mask.device)
        batch.cache.reorder_cache(index)  # `batch_select_indices` knows no recurrent states
        batch.slot_mask = batch.slot_mask[index]
        batch.token_ids = [batch.token_ids[row] for row in rows]
    return batch


class EmbeddedEngine:
    """Answers each request with the model that it names.

    Args:
        max_batch_sequences: most sequences in one forward pass.
        stop: when it is set, a call ends with `Interrupted`.
        on_tokens: called after each decoding step with the number of tokens that it drew.
    """

    def __init__(
        self,
        max_batch_sequences: int,
        stop: threading.Event | None = None,
        on_tokens: Callable[[int], None] | None = None,
    ) -> None:
        self._max_batch_sequences = max_batch_sequences
        self._stop = stop
        self._on_tokens = on_tokens
        self._models: dict[str, TransformersEngine] = {}

    def serve(self, name: str, model: PreTrainedModel, end_token_ids: frozenset[int]) -> None:
        """Answer requests for `name` with this model from now on."""
        self._models[name] = TransformersEngine(
            model, end_token_ids, self._max_batch_sequences, self._stop, self._on_tokens
        )

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer every request, in order; requests of one model are batched together.

        Raises EngineError for a request to a model that is not served, and `Interrupted` when the run was
        asked to stop.
        """
        by_model: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            if request.model not in self._models:
                raise EngineError(f"the embedded engine serves no model {request.model}")
            by_model.setdefault(request.model, []).append(index)
        answers: dict[int, Generation] = {}
        for name, indices in by_model.items():
            found = self._models[name].generate([requests[index] for index in indices])
            answers.update(zip(indices, found, strict=True))
        return [answers[index] for index in range(len(requests))]
