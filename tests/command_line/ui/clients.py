"""Requests to the page over a store, without a real browser."""

from __future__ import annotations

import html
import re

from starlette.testclient import TestClient

from command_line.ui.access import Access, access_for
from command_line.ui.app import create_app

HERE = "http://127.0.0.1"


def client(store: object, access: Access | None = None, base: str = HERE) -> TestClient:
    """Requests to the page over a store, as this machine's own browser makes them."""
    return TestClient(create_app(str(store), access or access_for("127.0.0.1")), base_url=base)


def main_text(page: str) -> str:
    """The visible text of a page's main part, in one line."""
    inside = page[page.index("<main") : page.index("</main>")]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", inside)).split())


def commands_of(page: str) -> list[str]:
    """The command lines that a page offers to copy."""
    return [html.unescape(line) for line in re.findall(r'data-copy="([^"]*)"', page)]


def links_of(page: str) -> list[str]:
    """The links of a page that lead to this server."""
    return [html.unescape(target) for target in re.findall(r'href="(/[^"]*)"', page)]
