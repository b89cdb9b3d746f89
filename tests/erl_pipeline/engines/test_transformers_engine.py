import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from erl_pipeline.engines.embedded.engine import TransformersEngine
from erl_pipeline.engines.embedded.short_query_attention import SHORT_QUERIES, attend
from erl_pipeline.engines.interface import Generation, GenerationRequest
from storage.errors import Interrupted

END = 3
VOCABULARY = 40


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    ids = {"bos_token_id": None, "eos_token_id": END}
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=32, n_layer=2, n_head=1, **ids)
    )


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))


def _sizes() -> dict[str, Any]:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
    return {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, **heads}


def with_a_window() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**_sizes(), sliding_window=8))


def with_a_window_by_places() -> PreTrainedModel:
    """Its window counts places in the cache, also those that hold nothing."""
    kinds = {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "num_heads": 2}
    return GPTNeoForCausalLM(
        GPTNeoConfig(vocab_size=VOCABULARY, hidden_size=32, window_size=8, bos_token_id=None, **kinds)
    )


def with_a_recurrent_layer() -> PreTrainedModel:
    return Lfm2ForCausalLM(Lfm2Config(**_sizes(), layer_types=["conv", "full_attention"]))


def engine(model: PreTrainedModel, stop: threading.Event | None = None) -> TransformersEngine:
    return TransformersEngine(model, frozenset({END}), max_batch_sequences=3, stop=stop)


def some_requests(count: int) -> list[GenerationRequest]:
    stream = random.Random(1)
    return [
        GenerationRequest(
            prompt_token_ids=tuple(stream.randrange(4, VOCABULARY) for _ in range(stream.randrange(3, 12))),
            max_new_tokens=stream.randrange(1, 6),
            temperature=0.0 if index == 2 else 1.0,
            seed=index,
            conversation=str(index),
        )
        for index in range(count)
    ]


def next_turn(request: GenerationRequest, answer: Generation) -> GenerationRequest:
    observation = tuple(range(10, 10 + 1 + request.seed % 3))
    longer = request.prompt_token_ids + answer.token_ids + observation
    return replace(request, prompt_token_ids=longer, seed=request.seed + 100)


@pytest.mark.parametrize("make_model", [gpt2, llama])
def test_cached_batches_answer_as_if_each_request_were_alone_and_new(
    make_model: Callable[[], PreTrainedModel],
) -> None:
    model = make_model()
    batched = engine(model)
    requests = some_requests(8)
    for _ in range(3):
        answers = batched.generate(requests)
        for request, answer in zip(requests, answers, strict=True):
            [alone] = engine(model).generate([request])
            assert answer.token_ids == alone.token_ids
            assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        # Some conversations end, so some rows of the cache are dropped.
        requests = [next_turn(r, a) for r, a in zip(requests, answers, strict=True) if r.seed % 4 != 1]


@pytest.mark.parametrize("make_model", [gpt2, llama])
def test_a_prompt_that_requests_share_is_computed_once_in_every_turn(
    make_model: Callable[[], PreTrainedModel],
) -> None:
    model = make_model()
    computed: list[tuple[int, ...]] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: computed.append(inputs[0].shape))
    prompts = [(5, 6, 7, 8, 9), (11, 12, 13, 14)]
    shared = TransformersEngine(model, frozenset({END}), max_batch_sequences=8)
    for turn in range(2):
        requests = [
            GenerationRequest(prompts[row % 2], 1, 1.0, 10 * turn + row, str(row)) for row in range(6)
        ]
        computed.clear()
        answers = shared.generate(requests)
        # Two prompts of at most 5 tokens; the second turn adds two tokens to each.
        assert computed == [(2, 5 if turn == 0 else 2)]
        for request, answer in zip(requests, answers, strict=True):
            [alone] = engine(model).generate([request])
            assert answer.token_ids == alone.token_ids
            assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        # Every conversation continues with the same words, like an environment's answer to one action.
        prompts = [(*prompt, 20, 21) for prompt in prompts]


@pytest.mark.parametrize("make_model", [with_a_window, with_a_window_by_places, with_a_recurrent_layer])
def test_a_layer_that_does_not_attend_to_all_tokens_answers_as_a_plain_forward_pass(
    make_model: Callable[[], PreTrainedModel],
) -> None:
    """Three turns of conversations of different lengths, two of which begin with the same prompt."""
    model = make_model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)
    batched = engine(model)
    short, long = tuple(range(4, 14)), tuple(range(4, 24))
    conversations = {"a": short, "b": short, "c": long}
    for turn in range(3):
        requests = [
            GenerationRequest(prompt, 4, 1.0, 10 * turn + seed, name)
            for seed, (name, prompt) in enumerate(conversations.items())
        ]
        for request, answer in zip(requests, batched.generate(requests), strict=True):
            expected = plain_logprobs(model, request, answer)
            assert answer.logprobs == pytest.approx(expected, abs=1e-5)
            more = long if request.conversation == "c" else (20, 21)
            conversations[request.conversation] = request.prompt_token_ids + answer.token_ids + more


@pytest.mark.parametrize("queries", [1, 3])
def test_attention_of_short_queries_is_that_of_the_built_in_kernel(queries: int) -> None:
    torch.manual_seed(0)
    query = torch.randn(2, 4, queries, 8)
    key, value = torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    visible = torch.ones(queries, 7, dtype=torch.bool).tril(7 - queries).expand(2, 1, -1, -1).clone()
    visible[1, :, :, :3] = False

    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible, scale=0.3, enable_gqa=True
    )
    assert torch.allclose(attend(query, key, value, visible, 0.3), expected, atol=1e-6)


def test_a_model_keeps_its_attention_after_generation() -> None:
    """`_attn_implementation` is the only way to ask transformers for it; it is not public."""
    model, used = llama(), set()
    model.register_forward_pre_hook(lambda *_: used.add(model.config._attn_implementation))
    engine(model).generate(some_requests(1))
    assert used == {SHORT_QUERIES}
    assert model.config._attn_implementation == "sdpa"


def test_log_probabilities_are_those_of_a_plain_forward_pass() -> None:
    model = gpt2()
    request = some_requests(1)[0]
    [answer] = engine(model).generate([request])

    assert answer.logprobs == pytest.approx(plain_logprobs(model, request, answer), abs=1e-5)


def plain_logprobs(model: PreTrainedModel, request: GenerationRequest, answer: Generation) -> list[float]:
    """What one forward pass over prompt and answer says of the answer's tokens."""
    with torch.no_grad():
        logits = model(torch.tensor([request.prompt_token_ids + answer.token_ids])).logits[0]
    expected = torch.log_softmax(logits, dim=-1)[len(request.prompt_token_ids) - 1 :]
    return [expected[place, token].item() for place, token in enumerate(answer.token_ids)]


def test_an_answer_ends_with_the_end_token_or_at_its_limit() -> None:
    answers = engine(gpt2()).generate(
        [replace(r, max_new_tokens=60, seed=s) for s, r in enumerate(some_requests(12))]
    )

    assert {answer.finish_reason for answer in answers} == {"stop", "length"}
    for answer in answers:
        assert END not in answer.token_ids[:-1]
        assert (answer.finish_reason == "stop") == (answer.token_ids[-1] == END)
        assert answer.finish_reason == "stop" or len(answer.token_ids) == 60


def test_a_conversation_that_does_not_extend_what_is_cached_starts_anew() -> None:
    model = gpt2()
    first = some_requests(1)[0]
    changed = replace(first, prompt_token_ids=(9, *first.prompt_token_ids[1:], 11, 12, 13, 14, 15))
    used = engine(model)
    used.generate([first])

    assert used.generate([changed])[0].token_ids == engine(model).generate([changed])[0].token_ids


def test_a_stopped_run_interrupts_generation() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        engine(gpt2(), stop).generate(some_requests(1))
