"""An agent that tests start as a command: two calls in one conversation, a third that begins another, and a
report. It says the same for the same answers, and needs the standard library alone, so that it starts
quickly."""

import http.client
import json
import os
from pathlib import Path

task = json.loads(Path(os.environ["ERL_TASK_FILE"]).read_text())
connection = http.client.HTTPConnection(os.environ["OPENAI_BASE_URL"].split("/")[2])
headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}


def ask(*texts: str) -> str:
    """The answer to a conversation of user and assistant in turn."""
    roles = ("user", "assistant") * len(texts)
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    body = json.dumps({"model": "any", "messages": messages})
    connection.request("POST", "/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    assert answer.status == http.HTTPStatus.OK, told
    said: str = told["choices"][0]["message"]["content"]
    return said


first = ask(task["prompt"])
ask(task["prompt"], first, "again")
ask(f"apart: {task['prompt']}")
seed = int(os.environ["ERL_SEED"])
report = {"reward": seed % 3 / 2, "metrics": {"drawn": seed % 10**9}}
Path(os.environ["ERL_REPORT_FILE"]).write_text(json.dumps(report))
