"""A real S3-compatible server for a test: moto's, in its own process, on loopback and a free port.

python -m tests.s3_server PORT FAULTS [careless]

Requests are answered one after the other, since moto checks a condition and writes in two separate steps. A
careless server ignores If-None-Match, as some do. The file FAULTS contains N: every Nth request fails.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.waiting import wait_for

BUCKET = "bucket"


@dataclass(frozen=True)
class S3Server:
    """The server's port on loopback, and the environment variables that a program needs to use it."""

    process: subprocess.Popen[bytes]
    port: int
    environment: dict[str, str]
    faults: Path
    log: Path

    def requests(self, method: str, holding: str) -> list[str]:
        """The requests so far with an HTTP method, such as `/bucket/store/file?partNumber=1`, that contain a
        text."""
        found = re.findall(rf'"{method} (\S+) HTTP', self.log.read_text(errors="replace"))
        return [path for path in found if holding in path]

    def fail_every(self, requests: int) -> None:
        """Answer every Nth request with an internal error, every other of these after carrying it out; 0: no
        errors."""
        self.faults.write_text(str(requests))


@contextmanager
def s3_server(log: Path, *, conditions: bool = True) -> Iterator[S3Server]:
    """A running server with an empty bucket; it is ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    environment = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    faults = log.with_suffix(".faults")
    faults.write_text("0")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.s3_server",
                str(port),
                str(faults),
                *([] if conditions else ["careless"]),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        wait_for("the S3 server", lambda: _listens(port, process, log))
        urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT")).close()
        yield S3Server(process, port, environment, faults, log)
    finally:
        process.kill()
        process.wait()


def _listens(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, f"the S3 server did not start:\n{log.read_text()}"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(port: int, faults: Path, careless: bool) -> None:
    os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing")
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    _read_objects_once()
    application = DomainDispatcherApplication(create_backend_app)
    requests = itertools.count(1)

    def answer(environment: dict[str, Any], start_response: Any) -> Any:
        if careless:
            environment.pop("HTTP_IF_NONE_MATCH", None)
        period, number = int(faults.read_text() or 0), next(requests)
        if not period or number % period:
            return application(environment, start_response)
        if number // period % 2:
            list(application(environment, lambda *_: None))
        start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InternalError</Code><Message>We met an internal error.</Message></Error>"]

    run_simple("127.0.0.1", port, answer, threaded=False)


def _read_objects_once() -> None:
    """Keep the content of an object: moto reads all of it again for each range of it."""
    from moto.s3.models import FakeKey

    of_moto: Any = vars(FakeKey)["value"]

    def read(key: Any) -> bytes:
        kept: bytes = vars(key).get("kept") or of_moto.fget(key)
        vars(key)["kept"] = kept
        return kept

    def write(key: Any, content: bytes) -> None:
        vars(key).pop("kept", None)
        of_moto.fset(key, content)

    FakeKey.value = property(read, write)  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), "careless" in sys.argv[3:])
