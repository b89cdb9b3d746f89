from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from erl_pipeline.policies.embedding import DEFAULT_MODEL, SentenceEmbedder, _source, load_mean_pooled_bert
from storage.errors import ConfigError


@pytest.fixture(scope="module")
def embedder() -> SentenceEmbedder:
    return SentenceEmbedder()


TEXTS = [f"board {number} " + "fell into a hole " * (number % 5) for number in range(7)]


def test_vectors_have_unit_length(embedder: SentenceEmbedder) -> None:
    vectors = embedder.embed(TEXTS)
    assert vectors.shape == (7, 384) == (len(TEXTS), embedder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_a_vector_does_not_depend_on_its_company(embedder: SentenceEmbedder) -> None:
    alone = SentenceEmbedder()
    one_by_one = np.concatenate([alone.embed([text]) for text in TEXTS])
    assert np.array_equal(one_by_one, embedder.embed(TEXTS))
    assert np.array_equal(SentenceEmbedder().embed(TEXTS[::-1])[::-1], one_by_one)


def test_it_agrees_with_sentence_transformers(embedder: SentenceEmbedder) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(_source(embedder.model), device="cpu", local_files_only=True)
    expected = model.encode(TEXTS[:3], normalize_embeddings=True, show_progress_bar=False)
    assert np.allclose(embedder.embed(TEXTS[:3]), expected, atol=1e-5)
    assert list(embedder._encoder.state_dict()) == list(model.state_dict())


def test_the_default_model_is_loaded_without_sentence_transformers() -> None:
    code = (
        "import sys; from erl_pipeline.policies.embedding import SentenceEmbedder; "
        "SentenceEmbedder().embed(['x']); "
        "print(sorted({'sentence_transformers', 'sklearn', 'scipy', 'boto3'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_similar_texts_are_near(embedder: SentenceEmbedder) -> None:
    hole, pit, weather = embedder.embed(["you fell into a hole", "you dropped into a pit", "sunny and warm"])
    assert hole @ pit > hole @ weather + 0.2


def test_no_texts_give_no_vectors(embedder: SentenceEmbedder) -> None:
    assert embedder.embed([]).shape == (0, 384)


def test_single_texts_may_be_computed_by_themselves(embedder: SentenceEmbedder) -> None:
    alone = SentenceEmbedder(batch_tokens=1)
    texts = ["a hole to the left", "the goal"]
    assert np.array_equal(alone.embed(texts)[:1], SentenceEmbedder(batch_tokens=1).embed(texts[:1]))
    assert np.allclose(alone.embed(texts), embedder.embed(texts), atol=1e-5)


def test_a_long_text_is_cut_to_what_the_model_takes(embedder: SentenceEmbedder) -> None:
    assert np.array_equal(*embedder.embed(["hole " * 300, "hole " * 400]))


def test_the_model_is_named_with_the_digest_of_its_weights(embedder: SentenceEmbedder) -> None:
    name, _, digest = embedder.embedding_model.partition("@")
    assert name == "all-MiniLM-L6-v2"
    assert digest == "2c705a5e3279"


def test_the_thread_count_is_given_back(embedder: SentenceEmbedder) -> None:
    before = torch.get_num_threads()
    embedder.embed(["a text that was never embedded before"])
    assert torch.get_num_threads() == before


def test_loading_writes_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    SentenceEmbedder().embed(["quiet"])
    assert capfd.readouterr() == ("", "")


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedding model .* cannot be loaded"):
        SentenceEmbedder(str(tmp_path)).embed(["x"])


def _words() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({"[PAD]": 0, "a": 1, "b": 2}, unk_token="[PAD]"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


def test_a_static_embedding_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Its tokenizer is one of tokenizers, not of transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    static = StaticEmbedding(_words(), embedding_weights=np.eye(3, 8, dtype=np.float32))
    SentenceTransformer(modules=[static], device="cpu").save(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot be used: its tokenizer is not one of transformers"):
        SentenceEmbedder(str(tmp_path)).embed(["a b"])


def test_a_model_without_a_limit_of_tokens_is_refused_and_takes_one(tmp_path: Path) -> None:
    """XLNet has no largest position, and such a tokenizer has 1e30 for no limit."""
    from transformers import PreTrainedTokenizerFast, XLNetConfig, XLNetModel

    XLNetModel(
        XLNetConfig(vocab_size=3, d_model=8, n_layer=1, n_head=2, d_inner=8, pad_token_id=0)
    ).save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=_words(), pad_token="[PAD]")
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cannot be used: it has no limit of tokens"):
        SentenceEmbedder(str(tmp_path)).embed(["a b"])
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(tmp_path)
    assert SentenceEmbedder(str(tmp_path)).embed(["a b"]).shape == (1, 8)


def test_a_limit_that_is_null_is_left_to_sentence_transformers(tmp_path: Path) -> None:
    source = Path(_source(DEFAULT_MODEL))
    for name in ("modules.json", "config.json", "1_Pooling/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((source / name).read_text())
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": null}')
    assert load_mean_pooled_bert(tmp_path) is None
