"""Answers that are words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers.reading import (
    json_value,
    listed,
    lists_of_strings,
    missing_and_foreign,
)


def spell_backward(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The letters of the answer are those of the word."""
    word = metadata["word"].lower()
    if len(answer) != len(word):
        yield f"The answer has {len(answer)} characters, but the word has {len(word)}."
    yield from _letters_used(word, answer.lower())


def palindrome_generation(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The answer reads the same backwards, and has the letters that were given."""
    text = answer.lower()
    if text != text[::-1]:
        yield "The answer does not read the same backwards."
    yield from _letters_used("".join(metadata["letters"]), text)


def palindrome_partitioning(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Every part is a palindrome, and the parts make up the string."""
    partitions = lists_of_strings(json_value(answer))
    if partitions is None:
        yield "The answer should be a JSON list of lists of strings."
        return
    for number, parts in enumerate(partitions, start=1):
        if "".join(parts) != metadata["string"]:
            yield f"List {number} does not make up {metadata['string']}."
        wrong = [part for part in parts if part != part[::-1]]
        if wrong:
            yield f"List {number} has parts that are no palindromes: {listed(wrong)}."


def group_anagrams(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Each word once, and only anagrams in one group."""
    groups = lists_of_strings(json_value(answer))
    if groups is None:
        yield "The answer should be a JSON list of lists of words."
        return
    yield from _words_used(metadata["words"], [word for group in groups for word in group])
    for group in groups:
        if len({"".join(sorted(word)) for word in group}) > 1:
            yield f"These are not all anagrams of each other: {listed(group)}."


def word_sorting(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The words that were given, in the order that was asked for."""
    found = _comma_separated(answer)
    yield from _words_used(metadata["transformed_words"], found)
    direction = metadata["direction"]
    for first, second in pairwise(found):
        if (first > second) if direction == "ascending" else (first < second):
            yield f"{first[:40]} stands before {second[:40]}, which is not {direction}."


def word_sequence_reversal(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The words that were given."""
    yield from _words_used(metadata["words"], _comma_separated(answer))


def letter_jumble(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Each word is made of the letters of the scrambled one."""
    scrambled, found = metadata["scrambled_words"], answer.split()
    if len(found) != len(scrambled):
        yield f"The answer has {len(found)} words instead of {len(scrambled)}."
        return
    for word, given in zip(found, scrambled, strict=True):
        if sorted(word.lower()) != sorted(given.lower()):
            yield f"{word[:40]} is not made of the letters of {given}."


def caesar_cipher(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """As many words as in the cipher, each as long."""
    cipher, found = metadata["cipher_text"].split(), answer.split()
    if len(found) != len(cipher):
        yield f"The answer has {len(found)} words instead of {len(cipher)}."
        return
    for word, given in zip(found, cipher, strict=True):
        if len(word) != len(given):
            yield f"{word[:40]} is not as long as {given}."


def word_ladder(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The first and last word, and one letter changed in each step."""
    found = [word.strip() for word in answer.upper().split(",")]
    if found[0] != metadata["start_word"]:
        yield f"The first word should be {metadata['start_word']}."
    if found[-1] != metadata["end_word"]:
        yield f"The last word should be {metadata['end_word']}."
    for first, second in pairwise(found):
        changed = sum(one != other for one, other in zip(first, second, strict=False))
        if len(first) != len(second) or changed != 1:
            yield f"From {first[:40]} to {second[:40]} it is not one letter that changes."


def _comma_separated(answer: str) -> list[str]:
    return [word.strip() for word in answer.split(",")]


def _letters_used(given: str, used: str) -> Iterator[str]:
    missing, foreign = missing_and_foreign(given, used)
    if missing:
        yield f"Letters that were given and are not used: {listed(missing)}."
    if foreign:
        yield f"Letters that are used too often, or were not given: {listed(map(repr, foreign))}."


def _words_used(given: Sequence[str], used: Sequence[str]) -> Iterator[str]:
    missing, foreign = missing_and_foreign(given, used)
    if missing:
        yield f"Words that were given and are not in the answer: {listed(missing)}."
    if foreign:
        yield f"Words that are in the answer too often, or were not given: {listed(foreign)}."
