"""No address, however odd or long, makes the page fail or compute for long."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from command_line.ui import lineage, memory_pages, row_pages, run_pages, runs_pages
from command_line.ui.access import LONGEST_ADDRESS
from command_line.ui.filters import FILTERS
from tests.command_line.ui.clients import client
from tests.command_line.ui.stores import write_page_store

ODD = (
    "\x00",
    "a\x00b",
    "..",
    "../../etc/passwd",
    "x" * 5_000,
    "9" * 5_000,
    "-1",
    "1e999",
    "nan",
    "\ud83d",
    "abc\u202edef",
    "'\"><script>",
    "[",
    "(a+)+$",
    "%",
    "٣",
    "1" * 3_000 + "." * 3_000,
)
"""Parts of addresses that no page of the store has."""
KNOWN = {"name": "one", "iteration": "1", "episode": "episode", "trajectory": "first", "entry": "m-east"}
"""Values of the path's parts that the store does have."""
SLOW_SECONDS = 2.0
"""Of processor time: on a busy machine an answer may take longer."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """Its first search has loaded the embedding model, which takes a second or two."""
    opened = client(write_page_store(tmp_path_factory.mktemp("odd")).store.uri)
    assert opened.get("/runs/one/memory?text=ice").status_code == 200
    return opened


def routes() -> Iterator[APIRoute]:
    """Every address but the stream of events, which does not end."""
    for pages in (runs_pages, run_pages, row_pages, memory_pages, lineage):
        for route in pages.router.routes:
            assert isinstance(route, APIRoute)
            if not route.path.endswith("/events"):
                yield route


def addresses(route: APIRoute) -> Iterator[str]:
    """The route with one odd part at a time, the rest as the store has it."""
    parts = [field.name for field in route.dependant.path_params]
    asked = [field.alias for field in route.dependant.query_params]
    if route.path.endswith("/rows"):
        asked += FILTERS
    for odd in ODD:
        quoted = quote(odd.encode("utf-8", "surrogatepass"), safe="")
        for odd_part in parts:
            yield filled(route.path, {**KNOWN, odd_part: quoted})
        for name in asked:
            yield f"{filled(route.path, KNOWN)}?{name}={quoted}"


def filled(path: str, values: Mapping[str, str]) -> str:
    """A route's path with values in place of the names of its parts; `x` for those without one."""
    return re.sub(r"\{(\w+)\}", lambda part: values.get(part[1], "x"), path)


@pytest.mark.parametrize("route", list(routes()), ids=lambda route: route.path)
def test_every_odd_address_gets_a_page_in_time(page: TestClient, route: APIRoute) -> None:
    for address in addresses(route):
        begun = time.process_time()
        answer = page.get(address)
        assert answer.status_code < 500, (answer.status_code, address[:200])
        assert time.process_time() - begun < SLOW_SECONDS, address[:200]
        assert "\u202e" not in answer.text


def test_a_long_address_is_refused_before_it_is_read(page: TestClient) -> None:
    for name in FILTERS:
        begun = time.process_time()
        answer = page.get(f"/runs/one/rows?{name}=1.{'.' * 60_000}%20x")
        assert (answer.status_code, time.process_time() - begun < SLOW_SECONDS) == (414, True)
    assert page.get(f"/runs/one/rows?said={'x' * (LONGEST_ADDRESS - 100)}").status_code == 200
