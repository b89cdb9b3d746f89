from __future__ import annotations

from dataclasses import replace

import pytest

from erl_pipeline.engines.embedded.engine import EmbeddedEngine, TransformersEngine
from erl_pipeline.engines.interface import POLICY, GenerationRequest
from storage.errors import EngineError
from tests.random_models import random_gpt2, random_llama

END = frozenset({2})


def test_each_request_is_answered_by_the_model_that_it_names() -> None:
    models = {POLICY: random_llama(20), "extractor": random_gpt2(20)}
    engine = EmbeddedEngine(max_batch_sequences=8)
    for name, model in models.items():
        engine.serve(name, model, END)
    requests = [
        GenerationRequest((1, 3, 5 + seed), 4, 1.0, seed, str(seed), model)
        for seed, model in enumerate([POLICY, "extractor", POLICY, "extractor"])
    ]
    alone = {
        name: TransformersEngine(model, END, 8).generate([r for r in requests if r.model == name])
        for name, model in models.items()
    }
    answers = engine.generate(requests)
    assert [answers[0], answers[2]] == alone[POLICY]
    assert [answers[1], answers[3]] == alone["extractor"]
    with pytest.raises(EngineError, match="serves no model critic"):
        engine.generate([replace(requests[0], model="critic")])
