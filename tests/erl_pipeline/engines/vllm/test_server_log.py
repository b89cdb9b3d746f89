from pathlib import Path

from erl_pipeline.engines.vllm.server import last_lines, reasons

# The log of vLLM 0.32 when a worker gets no memory, much shortened.
FAILED = """\
(APIServer pid=1) WARNING 11-21 23:06:45 [base.py:380] ValueError: Tokenizer not available
(Worker pid=3) ERROR 11-21 23:06:52 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=3) ERROR 11-21 23:06:52 [multiproc_executor.py:1063] RuntimeError: can't allocate memory
(Worker pid=3) ERROR 11-21 23:06:52 [multiproc_executor.py:1063] RuntimeError: can't allocate memory
(EngineCore pid=2) ERROR 11-21 23:06:52 [core.py:1512] RuntimeError: Worker failed with error \
'can't allocate memory', please check the stack trace above for the root cause
torch.OutOfMemoryError: CUDA out of memory
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_reasons_are_what_failed_first_without_its_echoes(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED)
    assert reasons(log, 0) == [
        "RuntimeError: can't allocate memory",
        "torch.OutOfMemoryError: CUDA out of memory",
    ]


def test_reasons_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(FAILED + "(APIServer pid=9) INFO 11-21 23:07:00 [launcher.py:195] Route: /ping\n")
    assert reasons(log, len(FAILED.encode())) == []


def test_a_worker_that_was_killed_is_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    killed = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."
    log.write_text(f"(EngineCore pid=2) ERROR 11-21 23:02:41 [multiproc_executor.py:315] {killed}\n")
    assert reasons(log, 0) == [killed]


def test_the_last_lines_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number} {'x' * 90}\n" for number in range(2000)))
    lines = last_lines(log).splitlines()
    assert len(lines) == 30
    assert lines[0].startswith("line 1970 ")


def test_no_log_yet(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "server.log") == "(no log)"
    assert reasons(tmp_path / "server.log", 0) == []
