"""Building a search index, and opening an environment with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from erl_pipeline.environments.dependencies import Embedders
from erl_pipeline.environments.hotpotqa.environment import HotpotQA
from erl_pipeline.environments.hotpotqa.index import build_index, open_index, passages_of
from erl_pipeline.environments.hotpotqa.question_file import Passage
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.interface import Environment, Task
from erl_pipeline.environments.threads import in_threads
from storage.errors import InputError

_WORDS_ALONE = "full_text"
_BUILT_FROM = frozenset(
    {"type", "task_file", "passage_file", "search", "embedding_model", "embedded_characters"}
)


def index_settings(config: HotpotQAConfig) -> HotpotQAConfig:
    """The settings that the index depends on, all others at their defaults."""
    fields = HotpotQAConfig.model_fields
    others = {name: each.get_default() for name, each in fields.items() if name not in _BUILT_FROM}
    if config.search == _WORDS_ALONE:
        others |= {name: fields[name].get_default() for name in ("embedding_model", "embedded_characters")}
    else:
        others["search"] = "hybrid"  # The same index answers a search by vector alone.
    return config.model_copy(update=others)


def for_template(config: HotpotQAConfig, knows_tools: bool) -> HotpotQAConfig:
    """The settings with a protocol that the policy can use. Raises `InputError` if they ask for another."""
    if knows_tools:
        return config
    if config.tool_format == "template":
        raise InputError(
            "environment.tool_format: template; the policy's chat template knows no tools, or has them "
            "called in another form than <tool_call>{...}</tool_call>; allowed with it are plain and auto"
        )
    return config.model_copy(update={"tool_format": "plain"})


def build(config: HotpotQAConfig, folder: Path, embedders: Embedders) -> Mapping[str, int]:
    """Write the index of the configured files into an empty folder."""
    embedder = None if config.search == _WORDS_ALONE else embedders(config.embedding_model)
    return build_index(passages_of(config), folder, embedder, config.embedded_characters)


def open_with_index(config: HotpotQAConfig, task: Task, folder: Path, embedders: Embedders) -> Environment:
    """The environment of a task, each episode in a thread of its own."""

    def search(query: str) -> list[Passage]:
        # Opened by the first search, which waits in its own thread for the model that embeds queries.
        embedder = None if config.search == _WORDS_ALONE else embedders(config.embedding_model)
        return open_index(folder, embedder).search(query, config.passages, config.search)

    return in_threads(HotpotQA(config, task, search))


def open_without_index(config: HotpotQAConfig, task: Task) -> Environment:
    """Raises `InputError`: the environment can only be opened with its index."""
    raise InputError(
        "environment hotpotqa searches an index that is built beforehand; open it with `built_files`"
    )
