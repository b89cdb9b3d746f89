"""Links within the repository lead to an existing file, and to a heading of it."""

from __future__ import annotations

import re

import pytest

from reference.hooks import ELSEWHERE
from reference.settings import sections
from tests.documents.pages import ROOT, Page, pages

_SETTINGS = "docs/reference/settings.md"
_ABOVE = re.compile(r"^\.\./")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.path)
def test_links_lead_somewhere(page: Page) -> None:
    wrong = [target for target in page.links() if not _leads_somewhere(page, target)]
    assert not wrong, f"{page.path}: {wrong}"


def _leads_somewhere(page: Page, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = (ROOT / page.path).parent.joinpath(path).resolve() if path else ROOT / page.path
    if not file.exists() or not file.is_relative_to(ROOT):
        return False
    name = str(file.relative_to(ROOT))
    return not anchor or name in GENERATED or anchor in Page(name).anchors() | generated_anchors(name)


GENERATED = ("docs/reference/commands.md", "docs/reference/tables.md")
"""Pages whose headings come from the code; the site's strict build checks their anchors."""


def generated_anchors(page: str) -> set[str]:
    """Headings of the page of settings."""
    return {section.anchor for section in sections()} if page == _SETTINGS else set()


def test_a_link_to_a_heading_that_is_not_there_is_found() -> None:
    assert _leads_somewhere(Page("README.md"), "#two-commands")
    assert not _leads_somewhere(Page("README.md"), "#three-commands")
    assert not _leads_somewhere(Page("README.md"), "docs/nowhere.md")
    assert not _leads_somewhere(Page("README.md"), f"{_SETTINGS}#method-nothing")


def test_every_page_of_the_site_is_in_its_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = [page.path.removeprefix("docs/") for page in pages() if page.path.startswith("docs/")]
    missing = [path for path in docs if path not in navigation]
    assert not missing
    assert "quickstart.md" in docs


def test_the_figures_of_every_comparison_are_on_the_site() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(path.relative_to(ROOT)) for path in ROOT.glob("benchmarks/results/*/comparison.md")]
    missing = [page for page in pages if page not in ELSEWHERE or ELSEWHERE[page] not in navigation]
    assert not missing


def test_the_readme_is_short() -> None:
    assert len(Page("README.md").text.splitlines()) <= 200
