"""What comes of hostile answers: written, read, remembered and trained on, as a run does it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.rollouts import SamplingConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.interface import POLICY, Generation, GenerationRequest
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from storage.texts import REPLACED_TEXTS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedTokenizerBase

    from erl_pipeline.environments.prompt_format import PromptFormat
    from erl_pipeline.episodes.context import EpisodeProtocol
    from erl_pipeline.episodes.play import PlayedEpisodes
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from storage.tables.trajectories import Trajectory


MOST_ANSWERS = 200
"""Hostile answers that are learned from; every kind is among the first."""

_NEW_TOKENS = 256
_MICROBATCH_TOKENS = 8192
_DIMENSION = 8


@dataclass(frozen=True)
class Learned:
    """What was stored and trained on: trajectories, texts in which a character was replaced, memory entries,
    and supervised rows."""

    rows: int
    replaced: int
    entries: int
    distilled: int


def learn_from(
    plugin: EnvironmentPlugin[Any],
    settings: Any,
    tasks: Sequence[Task],
    answers: Sequence[str],
    step_seconds: float,
) -> Learned:
    """Play episodes of the default method with these answers, and do with their trajectories what a run does.
    Half of them count as successes, whatever their rewards are, so that something is learned.

    Raises `ValueError` where something is lost or cannot be read again, and whatever goes wrong on the way.
    """
    from storage.tables.trajectories import write_trajectories

    policy = byte_policy()
    played = _play(plugin, settings, tasks, answers, step_seconds, policy)
    with TemporaryDirectory() as folder:
        table = Path(folder) / "trajectories.parquet"
        write_trajectories(table, played.rows)
        _require_readable(table, played.rows)
        kept = [row for row in played.rows if row.prompt_token_ids]
        remembered = _remember(f"{folder}/store", kept)
        distilled = _train(Path(folder), kept, policy)
    return Learned(len(played.rows), played.counters.get(REPLACED_TEXTS, 0), remembered, distilled)


class _GivenAnswers:
    """An engine that gives the answers in their order, again from the first when they are used up."""

    def __init__(self, answers: Sequence[str], end: int) -> None:
        self._answers = cycle(answers)
        self._end = end

    def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Answer every request, in order."""
        return [self._answer(request.max_new_tokens) for request in requests]

    def _answer(self, most: int) -> Generation:
        # A byte is a token, and more characters than tokens are never needed.
        ids = [*byte_ids(next(self._answers)[:most]), self._end]
        kept = tuple(ids[:most])
        return Generation(kept, (-5.5,) * len(kept), "stop" if len(ids) <= most else "length")


def _play(
    plugin: EnvironmentPlugin[Any],
    settings: Any,
    tasks: Sequence[Task],
    answers: Sequence[str],
    step_seconds: float,
    policy: LoadedPolicy,
) -> PlayedEpisodes:
    from erl_pipeline.episodes.context import EpisodeLimits, Provenance
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.episodes.play import BatchSampling, EpisodeSetup, play_episodes, protocol_of

    chosen = RunConfig.model_fields["method"].default
    method = plugins("methods")[chosen].value
    episode = method.episode_settings(method.settings())

    def with_prompts(prompts: PromptFormat | None) -> EpisodeProtocol:
        protocol: EpisodeProtocol = method.open_episode(episode, prompts, first_only=False, retrieval=False)
        return protocol

    setup = EpisodeSetup(
        plugin=plugin,
        settings=plugin.episodes.for_template(settings, True),
        protocol=protocol_of(plugin, settings, with_prompts),
        chat=ChatTokenizer(policy.tokenizer),
        limits=EpisodeLimits(
            context_length=policy.context_length,
            end_token_ids=policy.eos_token_ids,
            success_threshold=1.0,
            step_seconds=step_seconds,
            by_role=method.role_limits(episode, SamplingConfig(max_new_tokens=_NEW_TOKENS)),
        ),
        provenance=Provenance("qualification", 1, {POLICY: "byte policy"}, policy.tokenizer_digest, "", 0),
    )
    # An episode that fails has three turns or more.
    episodes = math.ceil(len(answers) / 3)
    samples = range(math.ceil(episodes / len(tasks)))
    engine = _GivenAnswers(answers, min(policy.eos_token_ids))
    return play_episodes(setup, list(tasks)[:episodes], samples, BatchSampling(engine))


def _require_readable(table: Path, rows: Sequence[Trajectory]) -> None:
    from storage.tables.trajectories import read_trajectories, said, says, scan_trajectories

    for before, after in zip(rows, read_trajectories([table]), strict=True):
        for name in ("trajectory_id", "messages", "feedback", "text", "task_payload", "response_token_ids"):
            if getattr(before, name) != getattr(after, name):
                raise ValueError(f"trajectory {before.trajectory_id}: {name} is read otherwise than written")
        json.loads(after.messages)
        json.loads(after.task_payload)
    found = scan_trajectories([table]).select(said().alias("said"), says("x").alias("says")).collect()
    if found["said"].null_count() or found.height != len(rows):
        raise ValueError("the policy's words cannot be searched")


def _remember(store: str, rows: Sequence[Trajectory]) -> int:
    """Put the policy's words and the feedback into a memory, and search it by them; returns its entries."""
    from storage.memory.standalone import Lesson, StandaloneMemory

    words = [(json.loads(row.messages)[-1]["content"], row.feedback, row.task_type) for row in rows]
    memory = StandaloneMemory(store, "qualification", _Directions())
    version = memory.add([Lesson(text, feedback, kind) for text, feedback, kind in words if text])
    queries = [text for text, _, _ in words]
    memory.at(version).search(queries, 2)
    memory.at(version).search(queries, 2, mode="text")
    return memory.at(version).count()


def _train(folder: Path, rows: Sequence[Trajectory], policy: LoadedPolicy) -> int:
    """One step of reinforcement learning, and one on a dataset of the second half of the rows; returns the
    rows of the dataset."""
    from erl_pipeline.episodes.supervised_rows import supervised_row
    from erl_pipeline.trainers.interface import Reinforcement, SupervisedTraining, TrainingStart
    from erl_pipeline.trainers.sequences import supervised_sequence, trajectory_sequence
    from storage.tables.training import read_sft_rows, write_sft_rows

    plugin = plugins("trainers")[RunConfig.model_fields["trainer"].default].value
    start = TrainingStart(checkpoint=folder, load=lambda: policy, optimizer=OptimizerConfig())
    trainer = plugin.open(plugin.settings(), start)
    sequences = [trajectory_sequence(row, 1.0 if number % 2 else -1.0) for number, row in enumerate(rows)]
    update = UpdateConfig(microbatch_tokens=_MICROBATCH_TOKENS)
    metrics = trainer.reinforce(Reinforcement(sequences, ObjectiveConfig(), update, 0))
    if len(metrics.records) != len(rows):
        raise ValueError(f"{len(metrics.records)} of {len(rows)} trajectories are in the training record")
    dataset = folder / "sft.parquet"
    supervised_rows = [
        supervised_row(f"s-{row.trajectory_id}", row.role, row, asked=row, first=row, via=None)
        for row in rows[1::2]
    ]
    write_sft_rows(dataset, supervised_rows)
    read = read_sft_rows([dataset])
    supervised = FineTuneConfig(steps=1, microbatch_tokens=_MICROBATCH_TOKENS)
    trainer.fine_tune_supervised(
        SupervisedTraining([supervised_sequence(row) for row in read], supervised, 0)
    )
    return len(read)


class _Directions:
    """An embedder without a model: each text is a direction of its own."""

    model = "directions"
    embedding_model = "directions@1"

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of unit length, [text, dimension]."""
        import numpy as np

        digests = [hashlib.sha256(text.encode("utf-8")).digest()[:_DIMENSION] for text in texts]
        values = np.array([list(each) for each in digests], np.float32)
        vectors = values.reshape(len(texts), _DIMENSION) - 127.5
        units: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return units


CONTEXT = 4096
"""Tokens."""

_SPECIAL = ("<pad>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}<tool_call>{{ call['function'] | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, with tools and calls in Hermes' form."""


def byte_policy() -> LoadedPolicy:
    """A Llama of a few thousand weights, the same at every call."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from erl_pipeline.policies.pretrained import LoadedPolicy
    from erl_pipeline.policies.tokenizers import tokenizer_digest

    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(_SPECIAL) + 256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=CONTEXT,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    ends = frozenset({int(tokenizer.eos_token_id)})
    return LoadedPolicy(model, tokenizer, tokenizer_digest(tokenizer), CONTEXT, ends)


def byte_ids(text: str) -> list[int]:
    """A text as tokens; half of a character becomes three bytes that are no text."""
    return [len(_SPECIAL) + byte for byte in text.encode("utf-8", "surrogatepass")]


def _tokenizer() -> PreTrainedTokenizerBase:
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as ByteDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate([*_SPECIAL, *_alphabet()])}
    backend = Tokenizer(BPE(vocabulary, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteDecoder()
    backend.add_special_tokens(list(_SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[2],
        chat_template=_TEMPLATE,
    )


def _alphabet() -> list[str]:
    """The character that a byte-level vocabulary has for each byte, as GPT-2 made it."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (chr(256 + number) for number in range(256))
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]
