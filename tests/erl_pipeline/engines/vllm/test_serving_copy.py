import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from erl_pipeline.engines.probe import output_head
from erl_pipeline.engines.vllm.serving_copy import write_serving_copy
from tests.erl_pipeline.engines.vllm.small_policies import VOCABULARY, save, tied_llama, untied_gpt2
from tests.random_models import random_gemma3


def test_an_untied_checkpoint_is_served_as_it_is(tmp_path: Path) -> None:
    model = untied_gpt2()
    checkpoint = save(model, tmp_path / "checkpoint")
    assert write_serving_copy(checkpoint, tmp_path / "copy", output_head(model, checkpoint)) == checkpoint
    assert not (tmp_path / "copy").exists()


def test_a_tied_checkpoint_gets_a_head_of_its_own(tmp_path: Path) -> None:
    model = tied_llama()
    checkpoint = save(model, tmp_path / "checkpoint")
    copy = write_serving_copy(checkpoint, tmp_path / "copy", output_head(model, checkpoint))
    assert json.loads((copy / "config.json").read_text())["tie_word_embeddings"] is False
    assert torch.equal(
        load_file(copy / "output_head.safetensors")["lm_head.weight"], model.model.embed_tokens.weight
    )


def test_the_head_of_a_checkpoint_in_parts_is_in_its_index(tmp_path: Path) -> None:
    model = tied_llama()
    model.save_pretrained(tmp_path / "checkpoint", max_shard_size="50KB")
    checkpoint = tmp_path / "checkpoint"
    copy = write_serving_copy(checkpoint, tmp_path / "copy", output_head(model, checkpoint))
    assert len(list(copy.glob("model-*.safetensors"))) > 1
    served = AutoModelForCausalLM.from_pretrained(copy)
    assert served.lm_head.weight is not served.model.embed_tokens.weight
    tokens = torch.tensor([[5, 6, 7, 8]])
    assert torch.equal(served(tokens).logits, model(tokens).logits)


def test_the_text_part_of_a_model_of_text_and_images_gets_a_head_of_its_own(tmp_path: Path) -> None:
    model = random_gemma3(VOCABULARY)
    checkpoint = save(model, tmp_path / "checkpoint")
    copy = write_serving_copy(checkpoint, tmp_path / "copy", output_head(model, checkpoint))
    config = json.loads((copy / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["text_config"]["tie_word_embeddings"]) == (False, False)
    head = load_file(copy / "output_head.safetensors")["language_model.lm_head.weight"]
    assert torch.equal(head, model.get_input_embeddings().weight)
