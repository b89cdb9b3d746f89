"""A bare vLLM client: aiohttp and nothing else, replaying recorded requests to a server.

    python benchmarks/contenders/bare_client.py REPLAY.json FIGURES.json

The replay file holds `url`, `headers`, `in_flight`, `server_pid`, `sampling` (parameters of every request),
`use_seeds`, and `episodes`: lists of requests `[prompt token ids, tokens to generate, seed]`. Episodes are
begun in order, `in_flight` at a time; the requests of an episode are sent one after the other.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil


def server_cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and all its descendants so far."""
    server = psutil.Process(pid)
    times = [one.cpu_times() for one in (server, *server.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def cpu_seconds() -> float:
    """CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def replay(recorded: dict[str, Any]) -> int:
    """Send all requests; return the number of tokens that came back."""
    upcoming = iter(recorded["episodes"])
    endpoint = f"{recorded['url']}/inference/v1/generate"
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        connector=connector, headers=recorded["headers"], timeout=timeout
    ) as session:

        async def worker() -> int:
            tokens = 0
            for episode in upcoming:
                for prompt, length, seed in episode:
                    sampling = {**recorded["sampling"], "max_tokens": length, "ignore_eos": True}
                    if recorded["use_seeds"]:
                        sampling["seed"] = seed
                    body = {"token_ids": prompt, "sampling_params": sampling}
                    async with session.post(endpoint, json=body) as answer:
                        answer.raise_for_status()
                        choice = (await answer.json())["choices"][0]
                    if len(choice["token_ids"]) != length:
                        raise RuntimeError(f"{len(choice['token_ids'])} tokens came back, not {length}")
                    tokens += length
            return tokens

        return sum(await asyncio.gather(*(worker() for _ in range(recorded["in_flight"]))))


def main() -> None:
    recorded = json.loads(Path(sys.argv[1]).read_text())
    server_before, cpu_before = server_cpu_seconds(recorded["server_pid"]), cpu_seconds()
    started = time.perf_counter()
    tokens = asyncio.run(replay(recorded))
    seconds = time.perf_counter() - started
    figures = {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "tokens": tokens,
        "client_cpu_seconds": cpu_seconds() - cpu_before,
        "server_cpu_seconds": server_cpu_seconds(recorded["server_pid"]) - server_before,
    }
    Path(sys.argv[2]).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
