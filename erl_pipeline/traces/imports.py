"""Traces of a file as an artifact to learn from: a dataset of conversations, or entries of a memory."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from erl_pipeline.config.base import Settings
from erl_pipeline.environments.messages import Message
from erl_pipeline.runs.origins import commit_once, open_import
from erl_pipeline.stages.training.distillation import DATASET
from erl_pipeline.traces.calls import Call
from erl_pipeline.traces.conversations import Conversation, put_together, scores_of_no_call, with_scores
from erl_pipeline.traces.reading import Format, read_traces, source_system
from storage.artifacts.recipe import Recipe, digest
from storage.artifacts.store import ArtifactStore
from storage.artifacts.uncommitted import Told
from storage.errors import InputError, store_errors
from storage.filesystem import sha256_file
from storage.memory.entries import Embedder
from storage.memory.standalone import Lesson, StandaloneMemory
from storage.runs.documents import IMPORTED
from storage.runs.run import RunStore
from storage.tables.training import SftRow, write_sft_rows
from storage.texts import counted

STAGE, ROLE = "import_traces", "imported"


class Choice(Settings):
    """What of a file is taken, and how it is read."""

    format: Format
    source_model: str
    """Name of the model that wrote the answers; a version of it may follow in the file."""
    score: str | None = None
    """Name of the score that counts; None: the only one that there is."""
    min_reward: float | None = None
    """Answers with a score above it are taken."""
    accept_unscored: bool = False
    terms_checked: bool = False
    skip_bad: bool = False


@dataclass(frozen=True)
class ImportedTraces:
    """The result of an import. `problems` are the first of what was left out with `skip_bad`."""

    artifact_id: str
    path: Path | None
    """The dataset; None for a memory."""
    reused: bool
    counters: Mapping[str, int]
    problems: Sequence[str] = field(default_factory=tuple)


def import_sft(store_uri: str, path: Path, name: str, choice: Choice) -> ImportedTraces:
    """Commit the conversations of a file as the distillation dataset of a new run. They have no tokens and
    no log-probabilities: a warm start trains on their text, and nothing else can.

    Raises:
        InputError: something in the file is refused, an option is missing, or the name is taken.
        RunBusy: another process is working on the run.
        StoreError: the store cannot be written.
    """
    if not choice.terms_checked and choice.source_model not in RunStore(store_uri).list():
        raise InputError(
            f"{choice.source_model} is no run of this store: its terms say whether its answers may be "
            "trained on; --terms-checked confirms that they allow it"
        )
    traces = read_traces(path, choice.format, choice.source_model, skip_bad=choice.skip_bad)
    with store_errors("read", path):
        sha256 = sha256_file(path)
    calls = with_scores(traces.calls, traces.scores, choice.score)
    _require_options(calls, choice)
    conversations = put_together(calls)
    taken: Counter[str] = Counter()
    rows = [row for each in conversations for row in _rows(each, choice, taken)]
    if not rows:
        raise InputError(f"{path}: no answer has a score above {choice.min_reward}")
    counters = {
        "sft_rows": len(rows),
        "calls": len(calls),
        "conversations": len(conversations),
        "refused": traces.refused,
        "other_spans": traces.others,
        "scores_of_no_call": scores_of_no_call(calls, traces.scores),
        **{key: taken[key] for key in ("answers", "not_above", "unscored")},
    }
    settings = {"file_sha256": sha256, "source_system": source_system(choice.format), **choice.model_dump()}
    run = open_import(store_uri, name, {IMPORTED: {"file": path.name, "sha256": sha256, **settings}})
    recipe = Recipe(STAGE, 2, settings, {}, 0, kind="sft_dataset")

    def write(folder: Path) -> Told:
        return {"counters": counters, "rows": {DATASET: write_sft_rows(folder / DATASET, rows)}}

    with run.lock():
        store = ArtifactStore(store_uri)
        manifest, reused = commit_once(store, run, recipe, None, write)
        dataset = store.open(manifest.artifact_id).path(DATASET)
    return ImportedTraces(manifest.artifact_id, dataset, reused, counters, tuple(traces.problems.shown))


def import_memory(
    store_uri: str, path: Path, name: str, choice: Choice, embedder: Embedder
) -> ImportedTraces:
    """Add the comments of a file to a standalone memory, which is made if it is not there. The user's last
    message before the answer is the situation in which a comment should come to mind.

    Raises what `import_sft` raises, but for options that choose among answers.
    """
    traces = read_traces(path, choice.format, choice.source_model, skip_bad=choice.skip_bad)
    comments = [replace(each, value=None) for each in traces.scores]
    lessons = [
        Lesson(text=comment, situation=_asked(call))
        for call in with_scores(traces.calls, comments, None)
        for comment in call.comments
    ]
    if not lessons:
        raise InputError(f"{path}: no call has a comment; only comments become entries of a memory")
    memory = StandaloneMemory(store_uri, name, embedder)
    before = {each.artifact_id for each in memory.versions()}
    version = memory.add(lessons)
    counters = {
        "comments": len({each.entry_id for each in lessons}),
        "calls": len(traces.calls),
        "refused": traces.refused,
        "other_spans": traces.others,
    }
    return ImportedTraces(version, None, version in before, counters, tuple(traces.problems.shown))


def _asked(call: Call) -> str:
    before = [each["content"] for each in call.messages[: call.answers[-1]] if each["role"] == "user"]
    return before[-1] if before else call.messages[0]["content"]


def _require_options(calls: Sequence[Call], choice: Choice) -> None:
    """Raise InputError where scores decide and no limit is given, and where there are none."""
    scores = [call.score for call in calls if call.score is not None]
    if scores and choice.min_reward is None:
        raise InputError(
            f"{counted(len(scores), 'call has a score', 'calls have scores')}, from {min(scores):g} to "
            f"{max(scores):g}; --min-reward says above which one an answer is taken"
        )
    if not scores and not choice.accept_unscored:
        raise InputError("no call has a score; --accept-unscored takes the answers all the same")


def _rows(conversation: Conversation, choice: Choice, taken: Counter[str]) -> Iterator[SftRow]:
    """Rows of a conversation: one for each span of it in which all answers are taken."""
    learned = {}
    for place, call in conversation.answers.items():
        if call.score is None and not choice.accept_unscored:
            taken["unscored"] += 1
        elif call.score is not None and choice.min_reward is not None and call.score <= choice.min_reward:
            taken["not_above"] += 1
        else:
            taken["answers"] += 1
            learned[place] = call
    for begin, end in _spans(conversation.messages, learned):
        calls = [call for place, call in learned.items() if begin <= place <= end]
        prompt = tuple(_said(conversation.messages[:begin]))
        completion = tuple(_said(conversation.messages[begin : end + 1]))
        sources = tuple(call.span_id for call in calls if call.span_id)
        row = digest([prompt, completion, conversation.tools, calls[0].trace_id, sources])
        yield SftRow(
            sft_row_id=f"s-{row}",
            prompt=prompt,
            completion=completion,
            input_token_ids=(),
            loss_mask=(),
            trajectory_id=row,
            role=ROLE,
            reflection_trajectory_id=None,
            first_trajectory_id=row,
            memory_entry_ids=(),
            task_id=digest(prompt),
            task_type="",
            episode_id=calls[0].conversation or calls[0].trace_id,
            iteration=0,
            policy_version="",
            weight=1.0,
            tools=conversation.tools,
            source_system=source_system(choice.format),
            source_trace_id=calls[0].trace_id,
            source_span_ids=sources,
            source_model=calls[0].model or choice.source_model,
        )


def _spans(messages: Sequence[Message], learned: Mapping[int, Call]) -> Iterator[tuple[int, int]]:
    """First and last place of the answers that stand together, with no other answer between them."""
    begin = end = None
    for place, each in enumerate(messages):
        if place in learned:
            begin, end = (place if begin is None else begin), place
        elif each["role"] == "assistant" and begin is not None and end is not None:
            yield begin, end
            begin = end = None
    if begin is not None and end is not None:
        yield begin, end


def _said(messages: Sequence[Message]) -> Iterator[dict[str, str]]:
    for each in messages:
        yield {"role": each["role"], "content": each["content"]}
