"""A real server on loopback with the chat completions API."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class JudgeServer:
    """Its requests so far, and its answer: a text, an HTTP status, or raw bytes; with `hangs` none until it
    is closed."""

    answer: str | int | bytes = "You fell."
    hangs: bool = False
    url: str = ""
    questions: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def serve(server: JudgeServer) -> Iterator[JudgeServer]:
    """The server, listening at `url`."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            server.keys.append(self.headers.get("Authorization"))
            server.questions.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if server.hangs:
                ended.wait()
                return
            status = server.answer if isinstance(server.answer, int) else 200
            body = _body(server.answer)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Logs nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{listening.server_port}"
    try:
        yield server
    finally:
        ended.set()
        listening.shutdown()
        listening.server_close()
        thread.join()


def _body(answer: str | int | bytes) -> bytes:
    if isinstance(answer, bytes):
        return answer
    if isinstance(answer, int):
        return b"no model is loaded"
    message = {"role": "assistant", "content": answer}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
