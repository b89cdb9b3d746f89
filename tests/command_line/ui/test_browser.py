"""The page in a real browser: nothing fails in it, nothing leaves this machine, and it can be used by all."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from command_line.ui.access import access_for, listen
from command_line.ui.app import create_app
from erl_pipeline.runs.log import log_file
from erl_pipeline.runs.machine_use import MACHINE_LOG, MachineUse
from erl_pipeline.runs.state import write_run_report
from storage.runs.notes import note_run, tag_run
from storage.serving.aliases import change_alias
from tests.command_line.ui.stores import (
    HOSTILE,
    add_agent,
    add_searches,
    remembered,
    trajectories,
    write_hostile_store,
    write_page_store,
)
from tests.storage.serving.aliases import alias_change
from tests.training_stores import TrainingStore
from tests.waiting import wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to try the page in")

AXE = Path(__file__).parent / "vendor" / "axe" / "axe.min.js"
PAGES = (
    "/",
    "/runs/one",
    "/runs/helper",
    "/runs/one/iterations/1",
    "/runs/one/iterations/1/group?id=g%2Freflection",
    "/runs/one/iterations/1/episodes/episode",
    "/runs/asked/iterations/1/episodes/episode",
    "/runs/helper/iterations/1/episodes/episode",
    "/runs/one/rows",
    "/runs/one/rows?task_id=t1",
    "/runs/one/log",
    "/runs/one/machine",
    "/runs/one/serving",
    "/runs/one/memory?across=-1..3",
    "/runs/one/plan",
    "/runs/one/settings",
    "/compare?run=one&run=two",
    "/divergence?a=one&b=two",
    "/lineage/second",
    "/runs/nobody",
)


class Served:
    """A store with its page, served on loopback."""

    def __init__(self, made: TrainingStore, address: str) -> None:
        self.made, self.address = made, address


def serve(made: TrainingStore) -> Iterator[Served]:
    app = create_app(made.store.uri, access_for("127.0.0.1"))
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_for("the server", lambda: server.started)
        yield Served(made, f"http://127.0.0.1:{listener.getsockname()[1]}")
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = add_agent(add_searches(write_page_store(tmp_path_factory.mktemp("page"))))
    tag_run(made.store.uri, "one", ("baseline",))
    note_run(made.store.uri, "one", "a long word: " + "x" * 200)
    log_file(made.store.uri, "one").write_text("DEBUG a\nINFO b\nWARNING c\nERROR " + "x" * 400)
    at = datetime.now(UTC)
    use = {"cores": 0.5, "memory": 1e9, "machine_cores": 2.0, "machine_memory": 4e9, "gpus": ()}
    samples = [MachineUse(at=at + timedelta(seconds=seconds), **use) for seconds in (-5, 0, 5)]
    lines = "".join(f"{each.model_dump_json()}\n" for each in samples)
    log_file(made.store.uri, "one", MACHINE_LOG).write_text(lines)
    log_file(made.store.uri, "two", MACHINE_LOG).write_text(f"{samples[0].model_dump_json()}\n")
    change_alias(made.store.uri, "one", alias_change(made.ids["bootstrap"]))
    yield from serve(made)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(write_hostile_store(tmp_path_factory.mktemp("hostile")))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        # Containers run as root, where chromium has no sandbox of its own.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Visit:
    """A page in the browser, and what went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda told: self._console(told.type, told.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))

    def _console(self, kind: str, text: str) -> None:
        # The browser also reports the answer 404 to an address that is meant to be unknown.
        if kind in ("error", "warning") and "404" not in text:
            self.problems.append(text)


def patient(context: BrowserContext) -> BrowserContext:
    """The same context, which waits for what comes late on a busy machine."""
    context.set_default_timeout(120_000)
    return context


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    context = patient(browser.new_context(viewport={"width": 1400, "height": 900}))
    yield Visit(context.new_page())
    context.close()


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1400, "light")])
def test_pages_fit_fail_nowhere_ask_nobody_else_and_are_accessible(
    browser: Browser, served: Served, width: int, scheme: Any
) -> None:
    context = patient(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
    visit = Visit(context.new_page())
    for path in PAGES:
        visit.page.goto(served.address + path)
        visit.page.wait_for_load_state("networkidle")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, path
        visit.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = visit.page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa']})")["violations"]
        serious = [
            (each["id"], node["html"][:200], node.get("failureSummary", "")[:300])
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        assert not serious, (path, serious[:5])
    assert visit.problems == []
    assert visit.hosts == {served.address.removeprefix("http://")}
    context.close()


def test_curves_are_drawn_smoothed_and_compared(visit: Visit, browser: Browser, served: Served) -> None:
    visit.page.goto(f"{served.address}/compare?run=one&run=two")
    visit.page.wait_for_load_state("networkidle")
    visit.page.locator('[name="smooth"]').fill("0.5")
    assert "smooth=0.5" in visit.page.url
    visit.page.locator('select[name="x"]').select_option("tokens")
    visit.page.wait_for_url("**x=tokens*")
    assert visit.problems == []


def test_the_curves_of_the_machine_are_drawn_with_the_stages_above_them(visit: Visit, served: Served) -> None:
    visit.page.goto(f"{served.address}/runs/one/machine")
    plot = visit.page.locator(
        '.plot[aria-label="Processors: this run from 0.5 to 0.5; all of the machine from 2 to 2"]'
    )
    plot.wait_for()
    # Above the curves nothing is drawn but stripes, the first of them at the top.
    top = "canvas.getContext('2d').getImageData(0, 0, canvas.width, 6 * devicePixelRatio)"
    assert plot.locator("canvas").evaluate(f"(canvas) => {top}.data.some(Boolean)")
    assert visit.problems == []


def test_an_axis_under_a_single_point_is_about_that_point(visit: Visit, served: Served) -> None:
    visit.page.goto(f"{served.address}/runs/two/machine")
    visit.page.locator(".chart .uplot").first.wait_for()
    ends = "drawn.map((chart) => [chart.scales.x.min, chart.scales.x.max])"
    assert visit.page.evaluate(ends) == [[0, 1], [0, 1]]
    # The same page with other numbers: an evaluation after iteration 50, or after 3,000 tokens.
    series = "[{ ...read.charts[0].series[0], x: [%d] }]"
    lone = "grow({ x: '%s', charts: [{ ...read.charts[0], series: " + series + " }] })"
    visit.page.evaluate(lone % ("iteration", 50))
    assert visit.page.evaluate(ends) == [[49, 51]]
    visit.page.evaluate(lone % ("generated tokens", 3000))
    assert visit.page.evaluate(ends) == [[1500, 4500]]
    assert visit.problems == []


def test_tokens_are_fetched_on_expand_and_coloured_by_choice(visit: Visit, served: Served) -> None:
    visit.page.goto(f"{served.address}/runs/one/iterations/1/episodes/episode")
    column = visit.page.locator("section.step", has_text="Second attempt")
    column.get_by_text("tokens", exact=True).click()
    column.locator(".token.h8").first.wait_for()
    column.get_by_role("button", name="entropy").click()
    chosen = column.locator('button[aria-pressed="true"]', has_text="entropy")
    chosen.wait_for()
    assert visit.problems == []


def test_a_whole_text_is_fetched_on_expand(visit: Visit, served: Served) -> None:
    visit.page.goto(f"{served.address}/runs/one/rows?role=second_attempt")
    visit.page.locator(".said summary").first.click()
    visit.page.locator(".whole .text", has_text="right d").first.wait_for()
    assert visit.problems == []


def test_a_rectangle_on_the_map_of_the_memory_filters_the_list_by_the_address(
    visit: Visit, served: Served
) -> None:
    page = visit.page
    page.goto(f"{served.address}/runs/one/memory")
    page.locator(".map-legend .most", has_text="+0.500").wait_for()
    canvas = page.locator("#memory-map canvas").bounding_box()
    assert canvas is not None
    # East lies at the right end, half way up; west, north and south are outside.
    page.mouse.move(canvas["x"] + 0.8 * canvas["width"], canvas["y"] + 0.3 * canvas["height"])
    page.mouse.down()
    page.mouse.move(canvas["x"] + canvas["width"] - 2, canvas["y"] + 0.7 * canvas["height"])
    page.mouse.up()
    page.wait_for_url("**across=*up=*")
    assert page.locator("tbody tr").count() == 1
    assert page.locator("tbody tr", has_text="go right").count() == 1
    assert "1 entry in the rectangle, of 4" in page.locator("main").inner_text()
    # The same with keys: the rectangle moves to the left end, and is then removed.
    page.locator(".map-legend .most", has_text="+0.500").wait_for()
    page.locator("#memory-map canvas").focus()
    for _ in range(17):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.locator("tbody tr", has_text="go left").wait_for()
    assert page.locator("tbody tr").count() == 1
    page.locator('[name="across"]').fill("")
    page.locator('[name="up"]').fill("0.5..2")
    page.get_by_role("button", name="List these").click()
    page.locator("tbody tr", has_text="<b>go up</b>").wait_for()
    page.locator('[name="colour"]').select_option("iteration")
    page.wait_for_url("**colour=iteration*")
    assert page.locator("tbody tr").count() == 1
    assert visit.problems == []


def test_a_menu_that_is_used_before_the_scripts_have_come_sends_its_form(
    visit: Visit, served: Served
) -> None:
    visit.page.route("**/static/page.js", lambda asked: asked.abort())
    visit.page.goto(f"{served.address}/runs/one/memory")
    visit.page.locator('[name="colour"]').select_option("iteration")
    visit.page.wait_for_url("**colour=iteration*")


def test_the_report_is_one_file_that_draws_the_same_curves_and_asks_nobody(
    visit: Visit, served: Served, tmp_path: Path
) -> None:
    made = served.made
    report = write_run_report(made.store, made.runs.open("one"), tmp_path / "report.html")
    visit.page.goto(report.as_uri())
    visit.page.locator(".chart .uplot").first.wait_for()
    titles = visit.page.locator(".chart h2").all_inner_texts()
    visit.page.goto(f"{served.address}/runs/one")
    visit.page.locator(".chart .uplot").first.wait_for()
    drawn = visit.page.locator(".chart h2").all_inner_texts()
    # What needs all rows is drawn only in the report.
    assert [title for title in titles if title != "Mean reward by role"] == drawn
    assert visit.problems == []
    assert visit.hosts == {"", served.address.removeprefix("http://")}


def test_keys_lead_to_the_search_field_and_to_the_next_iteration(visit: Visit, served: Served) -> None:
    visit.page.goto(f"{served.address}/runs/one/iterations/1")
    visit.page.keyboard.press("j")
    visit.page.wait_for_url("**/iterations/2")
    visit.page.keyboard.press("k")
    visit.page.wait_for_url("**/iterations/1")
    visit.page.goto(served.address)
    visit.page.keyboard.press("/")
    assert visit.page.evaluate("document.activeElement.name") == "q"
    visit.page.goto(served.address)
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.textContent") == "Skip to content"


def test_the_colours_that_were_chosen_are_kept(visit: Visit, served: Served) -> None:
    visit.page.emulate_media(color_scheme="light")
    visit.page.goto(served.address)
    visit.page.locator("#theme").click()
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"
    visit.page.reload()
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_do_nothing(visit: Visit, hostile: Served, name: str) -> None:
    visit.page.goto(f"{hostile.address}/runs/one/iterations/1/episodes/{name}")
    visit.page.wait_for_load_state("networkidle")
    assert visit.page.title().startswith("Episode")
    assert visit.page.locator("main script, main img, main iframe").count() == 0
    assert visit.problems == []
    assert visit.hosts == {hostile.address.removeprefix("http://")}


def test_an_open_page_shows_a_commit_within_two_seconds_its_curves_grow_and_it_shows_the_end(
    browser: Browser, tmp_path: Path
) -> None:
    for served in serve(write_page_store(tmp_path)):
        made = served.made
        context = patient(browser.new_context())
        page = context.new_page()
        with made.runs.open("two").lock():
            remember(made, 1, "generate_rollouts", 4)
            page.goto(f"{served.address}/runs/two")
            page.locator("#live .status", has_text="at work").wait_for()
            curve = page.locator('.plot[aria-label="Memory: entries from 4 to 4"]')
            curve.wait_for()
            # There would be another element here if the page, or the chart, were built again.
            curve.evaluate("(plot) => { plot.firstChild.dataset.seen = 'before'; }")
            write = trajectories({"trajectory_id": "new"})
            made.commit("rollout_shard", "trajectories", 2, {"checkpoint": "fine_tune"}, write, run="two")
            page.locator("#live a", has_text="iteration 2").first.wait_for(timeout=2000)
            remember(made, 2, "index_memory", 6)
            grown = page.locator('.plot[aria-label="Memory: entries from 4 to 6"]')
            grown.wait_for(timeout=5000)
            assert grown.locator("[data-seen=before]").count() == 1
            page.locator("#iterations a", has_text="2").wait_for(timeout=5000)
        page.locator("#live .status", has_text="stopped").wait_for(timeout=5000)
        context.close()


def test_tabs_that_are_not_seen_leave_the_connections_of_the_browser_to_others(
    browser: Browser, tmp_path: Path
) -> None:
    """It opens six to a server at most, and each tab of a run at work holds one."""

    def turn(tab: Page, hidden: str) -> None:
        tab.evaluate(f"window.isHidden = {hidden}; document.dispatchEvent(new Event('visibilitychange'))")

    for served in serve(write_page_store(tmp_path)):
        context = patient(browser.new_context())
        context.add_init_script(
            "Object.defineProperty(document, 'hidden', {get: () => Boolean(window.isHidden)});"
        )
        with served.made.runs.open("two").lock():
            tabs = []
            for _ in range(7):
                tab = context.new_page()
                tab.goto(f"{served.address}/runs/two", timeout=10_000)
                tab.locator("#live .status", has_text="at work").wait_for()
                turn(tab, "true")
                tabs.append(tab)
            turn(tabs[0], "false")
        tabs[0].locator("#live .status", has_text="stopped").wait_for(timeout=5000)
        context.close()


def remember(made: TrainingStore, iteration: int, parent: str, entries: int) -> None:
    """Commit a memory version of run `two`."""
    inputs = {"memory": parent}
    made.commit("index_memory", "memory", iteration, inputs, remembered, run="two", entries=entries)
