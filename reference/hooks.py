"""Functions that mkdocs calls while it builds the site (`hooks` in mkdocs.yml).

Pages outside `docs`, such as README.md, become pages of the site. Marks of the form
`<!-- generated: settings -->` are replaced by text generated from the code. Links work both in the repository
and on the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.commands import commands_text
from reference.metrics import metrics_text
from reference.settings import settings_text
from reference.tables import tables_text

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"

ELSEWHERE: Mapping[str, str] = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/complementary/comparison.md": "results/complementary.md",
    "benchmarks/results/lessons/comparison.md": "results/lessons.md",
    "benchmarks/results/exgrpo/comparison.md": "results/exgrpo.md",
    "benchmarks/results/erl_with_replay/comparison.md": "results/erl_with_replay.md",
    "benchmarks/results/frozen_lake/comparison.md": "results/frozen_lake.md",
    "benchmarks/results/frozen_lake_tuned/comparison.md": "results/frozen_lake_tuned.md",
    "benchmarks/results/three_realms/comparison.md": "results/three_realms.md",
    "benchmarks/results/instructions/comparison.md": "results/instructions.md",
    "benchmarks/results/sixteen_realms/comparison.md": "results/sixteen_realms.md",
    "benchmarks/results/sparse_reward/comparison.md": "results/sparse_reward.md",
    "benchmarks/results/three_realms_parts/comparison.md": "results/three_realms_parts.md",
    "benchmarks/results/ways_to_distil/comparison.md": "results/ways_to_distil.md",
    "benchmarks/results/distilled_window/comparison.md": "results/distilled_window.md",
    "benchmarks/results/prompt_evolution/comparison.md": "results/prompt_evolution.md",
    "benchmarks/results/realms/comparison.md": "results/realms.md",
    "benchmarks/results/smollm2/comparison.md": "results/smollm2.md",
    "benchmarks/results/sokoban/comparison.md": "results/sokoban.md",
    "benchmarks/results/lessons/success_by_tokens.svg": "results/lessons.svg",
    "benchmarks/results/exgrpo/success_by_tokens.svg": "results/exgrpo.svg",
    "benchmarks/results/erl_with_replay/success_by_tokens.svg": "results/erl_with_replay.svg",
    "benchmarks/results/frozen_lake/generate_rollouts_gain_second_attempt.svg": "results/gain.svg",
    "benchmarks/results/frozen_lake/success_by_tokens.svg": "results/frozen_lake.svg",
    "benchmarks/results/frozen_lake_tuned/success_by_tokens.svg": "results/frozen_lake_tuned.svg",
    "benchmarks/results/realms/success_by_tokens.svg": "results/realms.svg",
    "benchmarks/results/three_realms/success_by_tokens.svg": "results/three_realms.svg",
    "benchmarks/results/instructions/success_by_tokens.svg": "results/instructions.svg",
    "benchmarks/results/sixteen_realms/success_by_tokens.svg": "results/sixteen_realms.svg",
    "benchmarks/results/sparse_reward/success_by_tokens.svg": "results/sparse_reward.svg",
    "benchmarks/results/three_realms_parts/success_by_tokens.svg": "results/three_realms_parts.svg",
    "benchmarks/results/ways_to_distil/success_by_tokens.svg": "results/ways_to_distil.svg",
    "benchmarks/results/distilled_window/success_by_tokens.svg": "results/distilled_window.svg",
    "benchmarks/results/smollm2/success_by_tokens.svg": "results/smollm2.svg",
    "benchmarks/results/sokoban/success_by_tokens.svg": "results/sokoban.svg",
    "configs/README.md": "configurations.md",
    "examples/README.md": "examples/index.md",
    "examples/backwards/README.md": "examples/backwards.md",
    "examples/best_of_n/README.md": "examples/best_of_n.md",
    "examples/guess_number/README.md": "examples/guess_number.md",
    "examples/own_objective/README.md": "examples/own_objective.md",
    "infra/README.md": "containers.md",
}
"""Files outside `docs` that are part of the site -> their paths on the site."""

GENERATED: Mapping[str, Callable[[], str]] = {
    "settings": settings_text,
    "commands": commands_text,
    "tables": tables_text,
    "metrics": metrics_text,
}
"""Name in a mark -> the function that gives the text for it."""

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]*)(?P<anchor>#[^)\s]*)?\)")
"""A link or a picture in Markdown whose target is a path of the repository."""
_FENCE = re.compile(r"(^```.*?^```$)", re.S | re.M)
_MARK = re.compile(r"<!-- generated: (\w+) -->")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs`."""
    from mkdocs.structure.files import File

    for source, uri in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the marks by generated text, and adapt the links to the site."""
    filled = _MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)
    sources = {uri: source for source, uri in ELSEWHERE.items()}
    uri = page.file.src_uri
    return with_site_links(filled, sources.get(uri, f"{DOCS}/{uri}"), uri)


def with_site_links(markdown: str, source: str, uri: str) -> str:
    """A page's Markdown with links for the site. A file that the site does not have is named by its path.

    Args:
        source: the page's path in the repository.
        uri: its path on the site.
    """
    folder = posixpath.dirname(source)

    def turned(link: re.Match[str]) -> str:
        if not link["target"]:
            return link[0]
        path = posixpath.normpath(posixpath.join(folder, link["target"]))
        target = _on_site(path)
        if target is None:
            return f"{link['text']} (`{path}`)" if link["text"].strip("`") != path else f"`{path}`"
        relative = posixpath.relpath(target, posixpath.dirname(uri) or ".")
        return f"{link['image']}[{link['text']}]({relative}{link['anchor'] or ''})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(turned, part) for part in parts)


def _on_site(path: str) -> str | None:
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith(f"{DOCS}/") and (ROOT / path).is_file():
        return path.removeprefix(f"{DOCS}/")
    return None


def on_config(config: MkDocsConfig) -> Any:
    """Rebuild a served site when a page outside `docs` changes."""
    config.watch.extend(str(ROOT / source) for source in ELSEWHERE)
    return config
