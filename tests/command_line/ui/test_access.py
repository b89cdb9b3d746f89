"""Who may see the page, and what protects it."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line.ui.access import Access, access_for, cookie_name
from erl_pipeline.network import is_loopback
from tests.command_line.ui.clients import client


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:4300", "localhost:4300", "[::1]:4300"])
def test_this_machines_own_names_are_answered(store: Path, host: str) -> None:
    assert client(store).get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:4300", "10.0.0.7", "", "[:::]"]
)
def test_other_host_names_are_refused(store: Path, host: str) -> None:
    answer = client(store).get("/", headers={"host": host})
    assert (answer.status_code, "does not answer" in answer.text) == (421, True)


def test_pages_of_other_sites_cannot_read_it(store: Path) -> None:
    page = client(store)
    assert page.get("/", headers={"origin": "http://evil.example"}).status_code == 403
    assert page.get("/", headers={"origin": "null"}).status_code == 403
    assert page.get("/", headers={"origin": "http://127.0.0.1"}).status_code == 200
    script = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    assert page.get("/curves", headers=script).status_code == 403
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert page.get("/", headers=link).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(store: Path, method: str) -> None:
    assert client(store).request(method, "/").status_code == 405


def test_every_answer_is_protected_errors_included(store: Path) -> None:
    for path in ("/", "/nothing", "/static/page.css", "/runs/unknown"):
        headers = client(store).get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"


def test_loopback_needs_no_token_and_every_other_address_does() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.7")] == [
        *(True, True, True),
        *(False, False),
    ]
    assert access_for("127.0.0.1").token is None
    tokens = {access_for("0.0.0.0").token, access_for("0.0.0.0").token}
    assert len(tokens) == 2
    assert all(token is not None and len(token) > 40 for token in tokens)


def test_the_token_moves_from_the_address_into_a_cookie(store: Path) -> None:
    access = Access(frozenset(), any_address=True, token="secret")
    page = client(store, access, base="http://10.0.0.7:4300")
    assert page.get("/").status_code == 401
    assert page.get("/?token=wrong").status_code == 401
    entering = page.get("/?token=secret&sort=name", follow_redirects=False)
    assert (entering.status_code, entering.headers["location"]) == (303, "/?sort=name")
    cookie = entering.headers["set-cookie"]
    assert f"{cookie_name('secret')}=secret" in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert page.get("/").status_code == 200
    page.cookies.clear()
    theirs = 'prefs={"dark":true}; consent=a b c; flag; a[b]=1'  # of another program on another port
    assert page.get("/", headers={"cookie": f"{theirs}; {cookie_name('secret')}=secret"}).status_code == 200
    name = cookie_name("secret")
    page.cookies.set(name, "wrong")
    assert page.get("/static/page.css", headers={"cookie": f"{name}=wrong"}).status_code == 401
    assert page.get("/", headers={"host": "evil.example"}).status_code == 421


def test_two_pages_on_ports_of_one_machine_do_not_log_each_other_out(store: Path) -> None:
    pages = [
        client(store, Access(frozenset(), any_address=True, token=token), base=f"http://10.0.0.7:{port}")
        for token, port in (("one", 4300), ("two", 4301))
    ]
    cookies = ""
    for page, token in zip(pages, ("one", "two"), strict=True):
        entering = page.get(f"/?token={token}", follow_redirects=False)
        cookies += entering.headers["set-cookie"].partition(";")[0] + "; "
    for page in pages:
        page.cookies.clear()
        assert page.get("/", headers={"cookie": cookies}).status_code == 200
