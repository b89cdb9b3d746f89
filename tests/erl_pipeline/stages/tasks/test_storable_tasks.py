import pytest

from erl_pipeline.environments.interface import Task
from erl_pipeline.stages.tasks.prepare_tasks import storable_tasks
from storage.errors import InputError
from storage.texts import StorableTexts


def test_all_texts_of_a_task_are_made_storable_and_counted() -> None:
    texts = StorableTexts()
    payload = {"question": "half \ud83d", "pages": [{"\udc80": "x"}], "steps": 3}
    given = [
        Task("t\ud800", "sums", "questions", payload),
        Task("u", "sums", "questions", {"question": "1+1"}),
    ]
    first, second = storable_tasks(given, texts)
    assert first.task_id == "t\ufffd"
    assert first.payload == {"question": "half \ufffd", "pages": [{"\ufffd": "x"}], "steps": 3}
    assert second == given[1]
    assert texts.replaced == 3


def test_ids_that_become_the_same_are_refused() -> None:
    given = [Task("t\ud800", "sums", "questions", {}), Task("t\ud801", "sums", "questions", {})]
    with pytest.raises(InputError, match="give them other ids"):
        storable_tasks(given, StorableTexts())


def test_a_payload_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InputError, match="task 't': its payload cannot be stored: is nested deeper than 64"):
        storable_tasks([Task("t", "sums", "questions", {"deep": deep})], StorableTexts())
