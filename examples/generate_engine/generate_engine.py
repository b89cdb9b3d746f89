"""An engine of one's own: each turn is sampled by the `generate` method of transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.engines.interface import (
    EngineCall,
    EnginePlugin,
    Generation,
    GenerationRequest,
    OpenedEngine,
    SampledModel,
)
from storage.errors import Interrupted

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from erl_pipeline.policies.pretrained import LoadedPolicy


class GenerateEngineConfig(PluginSettings):
    """One turn at a time, by `model.generate`."""

    type: Literal["generate"] = "generate"
    use_cache: bool = True
    """Whether keys and values of earlier tokens are kept while a turn is sampled."""


class GenerateEngine:
    """Answers requests one after another, each with random numbers of its own."""

    def __init__(self, settings: GenerateEngineConfig, policy: LoadedPolicy, call: EngineCall) -> None:
        self._settings = settings
        self._policy = policy
        self._call = call

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer the requests, in order."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Generation:
        import torch

        if self._call.stop.is_set():
            raise Interrupted
        model, ends = self._policy.model.eval(), self._policy.eos_token_ids
        prompt = torch.tensor([request.prompt_token_ids], device=model.device)  # [1, time]
        greedy = request.temperature == 0.0
        whole = {} if greedy else {"temperature": request.temperature, "top_k": 0, "top_p": 1.0}
        with _without_defaults(model), torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.manual_seed(request.seed % 2**63)
            made = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=not greedy,
                max_new_tokens=request.max_new_tokens,
                eos_token_id=sorted(ends),
                pad_token_id=min(ends),
                use_cache=self._settings.use_cache,
                output_logits=True,
                return_dict_in_generate=True,
                **whole,
            )
        tokens = made.sequences[0, prompt.shape[1] :]  # [new tokens]
        # [new tokens, vocabulary]; of temperature 1 for the most probable tokens, as the interface asks.
        logits = torch.stack(made.logits)[:, 0].float() / (1.0 if greedy else request.temperature)
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, tokens[:, None])[:, 0]
        self._call.on_tokens(len(tokens))
        return Generation(
            token_ids=tuple(tokens.tolist()),
            logprobs=tuple(logprobs.tolist()),
            finish_reason="stop" if int(tokens[-1]) in ends else "length",
        )


@contextmanager
def _without_defaults(model: PreTrainedModel) -> Iterator[None]:
    """Leave out the model's own settings of `generate`, which may bend the distribution, such as a penalty of
    repetitions. They are put back: this model is trained next, and each checkpoint has a copy of them."""
    from transformers import GenerationConfig

    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _open(settings: GenerateEngineConfig, model: SampledModel, call: EngineCall) -> OpenedEngine:
    return OpenedEngine(GenerateEngine(settings, model.load(), call))


ENGINE = EnginePlugin(settings=GenerateEngineConfig, open=_open)
