"""The site's search works in a page that is opened from a folder, as the README says to open it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.pages import ROOT

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("material", reason="what builds the site is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to try the page in")

_ATTEMPTS = 12
SCRIPT = "javascripts/iframe-worker.js"


def test_search_without_a_server(tmp_path: Path) -> None:
    docs, site = tmp_path / "docs", tmp_path / "site"
    (docs / SCRIPT).parent.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / SCRIPT, docs / SCRIPT)
    (docs / "index.md").write_text("# First\n\nNothing here.\n")
    (docs / "second.md").write_text("# Second\n\nOnly this page speaks of wombats.\n")
    (tmp_path / "mkdocs.yml").write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {docs}\nsite_dir: {site}\n"
        "hooks: []\nnav: [index.md, second.md]\n"
    )
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet"], cwd=tmp_path, check=True)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        box, found = page.locator("input.md-search__input"), page.locator(".md-search-result__link").first
        # The page has loaded before its script listens to the box: what is typed until then is lost.
        for attempt in range(_ATTEMPTS):
            box.fill("")
            box.press_sequentially("wombats", delay=20)
            try:
                found.wait_for(timeout=5_000)
                break
            except sync_api.TimeoutError:
                if attempt == _ATTEMPTS - 1:
                    raise
        assert found.get_attribute("href").startswith((site / "second.html").as_uri())
        browser.close()
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
