import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.engines.interface import Generation
from erl_pipeline.episodes.dialogue import ChatTokenizer, Dialogue
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def chatml_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character, and the two markers of the ChatML template."""
    characters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789 \n.[]"))
    tokenizer = Tokenizer(WordLevel({c: i for i, c in enumerate(characters)}))
    tokenizer.pre_tokenizer = Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=CHATML)
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    return fast


def end_ids(tokenizer: PreTrainedTokenizerFast) -> frozenset[int]:
    return frozenset({tokenizer.eos_token_id})


def said(tokenizer: PreTrainedTokenizerFast, text: str, reason: str = "stop") -> Generation:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return Generation(tuple(ids), (-0.5,) * len(ids), reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["<|im_end|>", ""])
def test_a_dialogue_in_ids_reads_as_its_chat_template(end: str) -> None:
    """Also when a turn was cut off: then the environment's tokens close it."""
    tokenizer = chatml_tokenizer()
    dialogue = Dialogue(ChatTokenizer(tokenizer), [{"role": "user", "content": "board"}], end_ids(tokenizer))
    assert dialogue.add_turn(said(tokenizer, f"go up{end}", "stop" if end else "length")) == "go up"
    dialogue.add_observation("you moved")

    expected = tokenizer.apply_chat_template(dialogue.messages, tokenize=False, add_generation_prompt=True)
    assert [m["content"] for m in dialogue.messages] == ["board", "go up", "you moved"]
    assert "".join(tokenizer.convert_ids_to_tokens(dialogue.token_ids)) == expected
    assert dialogue.truncated == (end == "")


def test_only_sampled_tokens_are_trained() -> None:
    tokenizer = build_tokenizer(FrozenLakeConfig(), 128)
    dialogue = Dialogue(
        ChatTokenizer(tokenizer), [{"role": "user", "content": "@ # notes ? ?"}], end_ids(tokenizer)
    )
    dialogue.add_turn(said(tokenizer, "up a <end>"))
    dialogue.add_observation("bump c3")
    dialogue.add_turn(said(tokenizer, "left b <end>"))

    words = tokenizer.convert_ids_to_tokens(dialogue.token_ids)
    assert " ".join(words) == (
        "<bos> <user> @ # notes ? ? <assistant> up a <end> <user> bump c3 <assistant> left b <end>"
    )
    assert dialogue.response_mask == [1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert dialogue.behaviour_logprobs == [-0.5] * 3 + [0.0] * 4 + [-0.5] * 3


def test_sampled_ids_are_kept_even_where_their_text_would_tokenize_otherwise() -> None:
    """Special tokens in the middle of an answer vanish from its text, not from its ids."""
    tokenizer = build_tokenizer(FrozenLakeConfig(), 128)
    dialogue = Dialogue(ChatTokenizer(tokenizer), [{"role": "user", "content": "@"}], end_ids(tokenizer))
    ids = tokenizer.convert_tokens_to_ids(["<user>", "up", "<pad>", "a", "<end>"])

    assert dialogue.add_turn(Generation(tuple(ids), (-1.0,) * 5, "stop")) == "up a"
    assert dialogue.response_token_ids == ids
