import json

import pytest

from storage.texts import StorableTexts, read_json, read_json_at, storable


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("plain", "plain"),
        ("a\ud83d", "a\ufffd"),
        ("\udc80b", "\ufffdb"),
        ("\ud83dx\ude00", "\ufffdx\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\x00\x1b\u202e", "\x00\x1b\u202e"),
    ],
)
def test_only_what_no_file_can_hold_is_replaced(given: str, kept: str) -> None:
    assert storable(given) == kept
    assert storable(given).encode("utf-8").decode("utf-8") == kept


def test_each_text_with_a_replacement_counts_once() -> None:
    texts = StorableTexts()
    value = {"\ud800\ud800": ["\udfff", "fine", 7, None], "b": {"c": "\ud83d\ud83d"}}
    assert texts.value(value) == {"\ufffd\ufffd": ["\ufffd", "fine", 7, None], "b": {"c": "\ufffd\ufffd"}}
    assert texts.replaced == 3
    assert texts.counters() == {"replaced_texts": 3}
    assert StorableTexts().counters() == {}


def test_a_value_may_have_64_levels() -> None:
    texts = StorableTexts()
    assert texts.value(json.loads("[" * 64 + "]" * 64)) is not None
    with pytest.raises(ValueError, match="is nested deeper than 64 levels"):
        texts.value(json.loads("[" * 65 + "]" * 65))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": NaN}', "is not JSON: NaN is no number there"),
        ("[Infinity]", "is not JSON: Infinity is no number there"),
        ("[1e999]", "has a number that is too large"),
        ("[-9223372036854775809]", "too large; allowed are 64 bits"),
        ("9" * 5000, "too large; allowed are 64 bits"),
        ("[" * 100_000, "is nested deeper than 64 levels"),
        ("{'a': 1}", "is not JSON: Expecting property name"),
    ],
)
def test_json_that_other_readers_refuse_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_json(text)
    with pytest.raises(ValueError, match=problem):
        read_json_at(f"ab{text}", 2)


def test_a_value_within_a_text_ends_where_it_ends() -> None:
    assert read_json_at('ab{"a": [1]} and more', 2) == ({"a": [1]}, 12)
    with pytest.raises(ValueError, match="is not JSON: Expecting value"):
        read_json_at("ab", 2)


def test_numbers_of_64_bits_are_read() -> None:
    assert read_json("[9223372036854775807, -9223372036854775808, 1e308]") == [2**63 - 1, -(2**63), 1e308]
