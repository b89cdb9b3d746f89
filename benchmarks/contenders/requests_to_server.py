"""Single plain requests to a managed vLLM server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

if TYPE_CHECKING:
    from erl_pipeline.engines.vllm.server import ManagedServer


def post(url: str, path: str, key: str, body: dict[str, Any] | None = None) -> bytes:
    """The body of the server's answer; proxies named in the environment are not used."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = Request(url + path, method="POST", data=json.dumps(body or {}).encode(), headers=headers)
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=120) as answer:
            content: bytes = answer.read()
            return content
    except HTTPError as error:
        raise RuntimeError(f"{path} answered {error.code}: {error.read()[:500].decode()}") from error


def reset_prefix_cache(url: str, key: str) -> None:
    post(url, "/reset_prefix_cache", key)


def generate_one(server: ManagedServer) -> None:
    """Ask the server to sample one token."""
    sampling = {"max_tokens": 1, "temperature": 1.0, "seed": 0, "detokenize": False}
    body = {"token_ids": list(range(3, 27)), "sampling_params": sampling}
    post(server.url, "/inference/v1/generate", server.api_key, body)
