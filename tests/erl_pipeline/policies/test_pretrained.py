from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from erl_pipeline.policies.checkpoint_files import weights_digest
from erl_pipeline.policies.pretrained import (
    Precision,
    compute_head_in_float32,
    load_policy,
    read_eos_token_ids,
    save_policy,
)
from erl_pipeline.policies.tokenizers import tokenizer_digest
from storage.errors import InputError
from tests.random_models import TEMPLATE

CPU = torch.device("cpu")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_policy_comes_with_what_generation_must_know(checkpoint: Path) -> None:
    policy = load_policy(checkpoint, dtype="bfloat16", device=CPU)
    assert policy.model.dtype == torch.bfloat16
    assert not policy.model.training
    assert policy.context_length == 48
    assert policy.eos_token_ids == {2}
    assert policy.tokenizer.apply_chat_template([{"role": "user", "content": "left"}])["input_ids"] == [
        1,
        3,
        5,
        4,
    ]


def mapped_from(address: int) -> str:
    """The file whose pages are at an address of this process; empty for memory without a file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, last = line.split()
        begin, end = (int(each, 16) for each in span.split("-"))
        if begin <= address < end:
            return last if last.startswith("/") else ""
    return ""


@pytest.mark.parametrize(("dtype", "mapped"), [("float32", True), ("bfloat16", False)])
def test_weights_in_the_type_of_the_file_are_mapped(checkpoint: Path, dtype: Precision, mapped: bool) -> None:
    """The processes of a sharded training each load the whole model: so it is in host memory once."""
    policy = load_policy(checkpoint, dtype=dtype, device=CPU)
    files = {mapped_from(weight.data_ptr()) for weight in policy.model.parameters()}
    assert (files == {str(checkpoint / "model.safetensors")}) == mapped


def test_all_end_tokens_are_found(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 4]}))
    policy = load_policy(checkpoint, device=CPU)
    assert policy.eos_token_ids == {0, 2, 4} == read_eos_token_ids(checkpoint, policy.tokenizer)


def test_settings_of_sampling_that_is_off_do_not_hinder_saving(checkpoint: Path, tmp_path: Path) -> None:
    """transformers refuses to save them."""
    file = checkpoint / "generation_config.json"
    file.write_text(json.dumps({"temperature": 0.9, "top_p": 0.6, "top_h": 0.5, "eos_token_id": 2}))
    save_policy(load_policy(checkpoint, device=CPU), tmp_path / "out")
    saved = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert saved | {"transformers_version": ""} == {"eos_token_id": 2, "transformers_version": ""}


@pytest.mark.parametrize(
    "settings",
    [
        {"do_sample": True, "temperature": 0.9, "top_p": 0.6, "eos_token_id": 2},
        {"temperature": 1.0, "top_k": 50, "eos_token_id": 2},
    ],
)
def test_settings_of_sampling_that_can_be_saved_are_kept(
    checkpoint: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps(settings))
    save_policy(load_policy(checkpoint, device=CPU), tmp_path / "out")
    saved = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert saved | {"transformers_version": ""} == settings | {"transformers_version": ""}


def test_a_generation_config_that_cannot_be_saved_again_is_named(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"pad_token_id": -1, "eos_token_id": 2}))
    with pytest.raises(InputError, match=r"generation_config\.json of .* cannot be saved .*`pad_token_id`"):
        load_policy(checkpoint, device=CPU)


def test_a_model_without_an_end_token_is_refused(
    checkpoint: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    (checkpoint / "generation_config.json").write_text("{}")
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="names no end-of-sequence token"):
        read_eos_token_ids(checkpoint, tokenizer)


def test_a_head_in_float32_adds_up_without_rounding_to_bfloat16(checkpoint: Path) -> None:
    """Hidden states of 1 and a row of weights 1 and fifteen times 2^-8: the sum needs more digits than
    bfloat16."""
    model = load_policy(checkpoint, dtype="bfloat16").model
    head, hidden = model.get_output_embeddings(), torch.ones(1, 16, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.fill_(2**-8)[:, 0] = 1
    exact = 1 + 15 * 2**-8
    assert abs(float(head(hidden)[0, 0].detach()) - exact) > 1e-3
    compute_head_in_float32(model)
    logits = model(input_ids=torch.tensor([[3, 5]])).logits
    assert (head(hidden).dtype, logits.dtype, head.weight.dtype) == (
        torch.float32,
        torch.float32,
        torch.bfloat16,
    )
    assert float(head(hidden)[0, 0].detach()) == exact
    head(hidden).sum().backward()
    assert head.weight.grad is not None
    assert head.weight.grad.tolist() == torch.ones_like(head.weight).tolist()


def test_saving_is_deterministic_across_loading(checkpoint: Path, tmp_path: Path) -> None:
    policy = load_policy(checkpoint, device=CPU)
    save_policy(policy, tmp_path / "first")
    save_policy(policy, tmp_path / "again")
    save_policy(load_policy(tmp_path / "first", device=CPU), tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "again") == contents(tmp_path / "second")
    assert "model.safetensors" in contents(tmp_path / "first")


def test_tokenizer_digest_follows_ids_and_template_not_use(tokenizer: PreTrainedTokenizerFast) -> None:
    before = tokenizer_digest(tokenizer)
    tokenizer(["left", "left right"], padding=True, truncation=True, max_length=2)
    assert tokenizer_digest(tokenizer) == before
    tokenizer.chat_template = str(tokenizer.chat_template) + " "
    assert tokenizer_digest(tokenizer) != before


def test_weights_digest_follows_every_file(checkpoint: Path) -> None:
    before = weights_digest(checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.norm.weight"][0] += 1
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    changed = weights_digest(checkpoint)
    (checkpoint / "config.json").write_text((checkpoint / "config.json").read_text() + "\n")
    assert len({before, changed, weights_digest(checkpoint)}) == 3


def test_weights_digest_follows_further_chat_templates(
    checkpoint: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer.chat_template = {"default": TEMPLATE, "tool_use": f"{TEMPLATE} tools"}
    tokenizer.save_pretrained(checkpoint)
    before = weights_digest(checkpoint)
    (checkpoint / "additional_chat_templates/tool_use.jinja").write_text("another")
    assert weights_digest(checkpoint) != before


def test_weights_digest_is_over_names_and_contents(tmp_path: Path) -> None:
    """Ids of artifacts depend on it."""
    for name, content in {"config.json": "{}", "chat_template.jinja": "x", "more/a.json": "{}"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    template, config = (hashlib.sha256(content).hexdigest() for content in (b"x", b"{}"))
    listed = f"chat_template.jinja\0{template}\nconfig.json\0{config}\n"
    assert weights_digest(tmp_path) == hashlib.sha256(listed.encode()).hexdigest()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a folder here nor a model"):
        load_policy(tmp_path / "missing", device=CPU)
    with pytest.raises(InputError, match="neither a folder here nor a model"):
        load_policy("someone/a-model-that-is-not-cached", device=CPU)
    with pytest.raises(InputError, match=r"no model checkpoint: it has no config\.json"):
        load_policy(tmp_path, device=CPU)


def test_pickled_weights_are_not_read(checkpoint: Path) -> None:
    torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(InputError, match="has no weights as safetensors"):
        load_policy(checkpoint, device=CPU)


def test_missing_weights_are_named_instead_of_drawn_at_random(checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks weights of a causal language model: model\.norm\.weight"):
        load_policy(checkpoint, device=CPU)


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=8, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="not a causal language model"):
        load_policy(tmp_path, device=CPU)


def test_a_model_that_keeps_a_state_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, state_size=2)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is a mamba, whose forward pass takes no past keys and values"):
        load_policy(tmp_path, device=CPU)


def change_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize(
    ("quantization", "method"), [({"quant_method": "mxfp4"}, "mxfp4"), ({"load_in_4bit": True}, "unnamed")]
)
def test_quantized_weights_are_refused(checkpoint: Path, quantization: dict[str, Any], method: str) -> None:
    change_config(checkpoint, quantization_config=quantization)
    with pytest.raises(InputError, match=rf"are quantized \({method}\); they cannot be trained or saved"):
        load_policy(checkpoint, device=CPU)


@pytest.mark.parametrize(("original", "refused"), [(24, True), (48, False)])
def test_positions_that_depend_on_other_sequences_are_refused(
    checkpoint: Path, original: int, refused: bool
) -> None:
    """LongRoPE, in a context of 48 tokens."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 8.0, 30.0]}
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=7,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=48,
        original_max_position_embeddings=original,
        rope_parameters=rope | {"rope_theta": 10000.0},
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    Phi3ForCausalLM(config).save_pretrained(checkpoint)
    if refused:
        with pytest.raises(InputError, match=r"the type longrope, which change .* longer than 24 tokens"):
            load_policy(checkpoint, device=CPU)
    else:
        assert load_policy(checkpoint, device=CPU).context_length == 48


def test_a_missing_tokenizer_is_refused(checkpoint: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).unlink()
    with pytest.raises(InputError, match=r"there is no tokenizer\.json\. Copy the tokenizer's files"):
        load_policy(checkpoint, device=CPU)


def test_a_missing_chat_template_is_refused(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template"):
        load_policy(checkpoint, device=CPU)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "the weights of .* cannot be read"),
        ("config.json", r"the config\.json of .* cannot be used"),
        ("tokenizer.json", r"has no tokenizer that can be read: .*line 1.*\. Copy the tokenizer's files"),
    ],
)
def test_a_damaged_file_is_named(checkpoint: Path, name: str, message: str) -> None:
    (checkpoint / name).write_bytes(b"{half a fi")
    with pytest.raises(InputError, match=message):
        load_policy(checkpoint, device=CPU)
