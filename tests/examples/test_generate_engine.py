"""An engine in a package of its own: its log-probabilities, and a run that samples by it."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.engines.embedded.engine import TransformersEngine
from erl_pipeline.engines.interface import EngineCall, GenerationRequest, SampledModel, ServedCheckpoint
from erl_pipeline.policies.pretrained import LoadedPolicy
from erl_pipeline.policies.tiny.model import build_model, build_tokenizer
from tests.examples.installed import ROOT, SMALL, Site

FOLDER = ROOT / "examples/generate_engine"
sys.path.insert(0, str(FOLDER))

from generate_engine import ENGINE, GenerateEngineConfig  # noqa: E402

T = TypeVar("T")


@dataclass
class Worker:
    """A worker that keeps nothing."""

    scratch: Path
    deterministic: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def keep(self, name: str, make: Callable[[], T]) -> T:
        return make()

    def kept(self, name: str) -> Any | None:
        return None


def unused() -> ServedCheckpoint:
    """What an engine in this process does not call."""
    raise AssertionError


class Silent:
    """Hears no news."""

    def waiting(self, what: str, seconds: float, detail: str) -> None:
        raise AssertionError(what)

    def warn(self, message: str) -> None:
        raise AssertionError(message)


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    tokenizer = build_tokenizer(["up", "down", "left", "right"], 32)
    model = build_model(TinyPolicyConfig(hidden_size=32, heads=1, layers=2), tokenizer, 32, seed=0)
    # As the defaults of a model may have it; the engine leaves it out.
    model.generation_config.repetition_penalty = 5.0
    ends = frozenset({tokenizer.convert_tokens_to_ids(tokenizer.eos_token)})
    return LoadedPolicy(model, tokenizer, tokenizer_digest="", context_length=32, eos_token_ids=ends)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_its_log_probabilities_are_those_of_the_projects_engine(
    policy: LoadedPolicy, tmp_path: Path, temperature: float
) -> None:
    counted: list[int] = []
    opened = ENGINE.open(
        GenerateEngineConfig(),
        SampledModel("policy", "id", lambda: policy, unused),
        EngineCall(Worker(tmp_path), Silent(), threading.Event(), counted.append),
    )
    (made,) = opened.batches.generate([GenerationRequest((3, 4, 5), 6, temperature, 7, "a")])
    assert counted == [len(made.token_ids)]
    assert len(made.token_ids) == 6 or made.finish_reason == "stop"
    # It left the model, which is trained next, as it was.
    assert policy.model.generation_config.repetition_penalty == 5.0
    # The other engine is asked for one token at a time after the same tokens.
    other = TransformersEngine(policy.model, policy.eos_token_ids, 8)
    if temperature == 0.0:
        (greedy,) = other.generate([GenerationRequest((3, 4, 5), 6, 0.0, 7, "b")])
        assert greedy.token_ids == made.token_ids
        assert greedy.logprobs == pytest.approx(made.logprobs, abs=1e-5)
        return
    for place, (token, logprob) in enumerate(zip(made.token_ids, made.logprobs, strict=True)):
        prompt = (3, 4, 5, *made.token_ids[:place])
        drawn = {
            each.token_ids[0]: each.logprobs[0]
            for each in other.generate(
                [GenerationRequest(prompt, 1, temperature, seed, f"{place} {seed}") for seed in range(256)]
            )
        }
        assert drawn[token] == pytest.approx(logprob, abs=1e-5)


@pytest.mark.slow
def test_a_run_samples_by_it_without_an_edit_of_the_project(tmp_path: Path) -> None:
    sources = shutil.copytree(
        FOLDER, tmp_path / "sources", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    site = tmp_path / "site"
    how = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--target", str(site)]
    subprocess.run([*pip, *how, str(sources)], check=True)
    settings = [
        *SMALL,
        "engine=generate",
        "rollouts.tasks_per_iteration=2",
        "rollouts.group_size=4",
        "iterations=1",
    ]
    done = Site(site).erl_pipeline(
        "train", ROOT / "configs/frozen_lake.yaml", "--store", tmp_path / "store", "--no-prefect", "--json",
        *(word for setting in settings for word in ("--set", setting)),
    )  # fmt: skip
    assert done.status == 0, done.errors
    manifests = [
        json.loads(path.read_text())
        for path in (tmp_path / "store/artifacts/rollout_shard").glob("*/manifest.json")
    ]
    assert manifests
    for manifest in manifests:
        assert manifest["settings"]["play"]["engine"] == {"type": "generate", "use_cache": True}
        assert "generate_engine" in json.dumps(manifest["code"])
