"""Several models in this process behind one engine."""

from __future__ import annotations

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import threading
from collections.abc import Callable, Sequence

from transformers import PreTrainedModel

from erl_pipeline.engines.embedded import TransformersEngine
from erl_pipeline.engines.interface import Generation, GenerationRequest
from storage.errors import EngineError


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

    def serve(
        self, name: str, model: PreTrainedModel, policy_version: str, end_token_ids: frozenset[int]
    ) -> None:
        """Answer requests for `name` with this model from now on."""
        self._models[name] = TransformersEngine(
            model,
            policy_version,
            end_token_ids,
            self._max_batch_sequences,
            stop=self._stop,
            on_tokens=self._on_tokens,
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
