from __future__ import annotations

import json
import re

import httpx
from hypothesis import given
from hypothesis import strategies as st

from erl_pipeline.views.iteration_table import IterationRow
from flows.page import artifact_key, publish_iterations
from flows.runner import call_as_flow


def test_a_key_is_the_name_in_the_letters_that_prefect_takes() -> None:
    assert artifact_key("frozen-lake", "iterations") == "frozen-lake-iterations"
    assert artifact_key("Run_7.b", "summary") == "run-7-b-summary"


@given(name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True))
def test_every_name_of_a_run_gives_a_key(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", artifact_key(name, "iterations"))


def test_a_long_runs_table_has_its_newest_iterations_and_says_where_the_others_are(api: str) -> None:
    rows = [IterationRow(iteration) for iteration in range(60)]
    call_as_flow("test", "many", lambda: publish_iterations("many", rows), {})
    asked = {"artifacts": {"key": {"any_": ["many-iterations"]}}}
    (table,) = httpx.post(f"{api}/artifacts/filter", json=asked).raise_for_status().json()
    assert [row["iter"] for row in json.loads(table["data"])] == [str(number) for number in range(10, 60)]
    assert (
        table["description"] == "Run many, iteration by iteration; those before 10: erl-pipeline status many"
    )
