"""Answers that are words or numbers, or are made of numbers; and reading: what cannot be read is None."""

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any


def whole_number(text: str) -> int | None:
    """A whole number of at most 12 digits."""
    return int(text) if re.fullmatch(r"\s*[-+]?[0-9]{1,12}\s*", text) else None


def json_value(text: str) -> Any:
    """A JSON value; None also for `null`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def strings(value: Any) -> list[str] | None:
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def lists_of_strings(value: Any) -> list[list[str]] | None:
    return value if isinstance(value, list) and all(strings(each) is not None for each in value) else None


def listed(names: Iterable[object]) -> str:
    """The first few of some names, for a sentence."""
    shown = [str(name)[:40] for name in names]
    return ", ".join(shown[:8]) + (", ..." if len(shown) > 8 else "")


def missing_and_foreign(given: Sequence[Any], used: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What was given and is used too rarely, and what is used too often or was not given; each in order."""
    missing, foreign = Counter(given) - Counter(used), Counter(used) - Counter(given)
    return list(missing.elements()), list(foreign.elements())


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


def word_sequence_reversal(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    yield from _words_used(metadata["words"], _comma_separated(answer))


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


_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST_EXPRESSION = 200
_LARGEST_FACTOR = 10**9


def countdown(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The value of the expression, and the numbers that it uses."""
    value = _value(answer)
    if value is None:
        yield "The answer should be an expression of numbers with + - * / and parentheses, and nothing else."
        return
    missing, foreign = missing_and_foreign(
        metadata["numbers"], [int(each) for each in re.findall(r"\d+", answer)]
    )
    if missing:
        yield f"The expression does not use {listed(missing)}."
    if foreign:
        yield f"The expression uses a number too often, or one that was not given: {listed(foreign)}."
    if value != metadata["target"]:
        shown = str(value) if value.denominator == 1 else f"{float(value):.3f}"
        yield f"The expression has the value {shown} instead of {metadata['target']}."


def cryptarithm(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """One digit for each letter, and the sum."""
    digits: dict[str, int] = {}
    for pair in answer.split(","):
        match = re.fullmatch(r"\s*([A-Z])\s*=\s*([0-9])\s*", pair)
        if match is None:
            yield "The answer should be a list such as A=1,B=2, with one digit for each letter."
            return
        digits[match.group(1)] = int(match.group(2))
    missing = sorted(set(metadata["letters"]) - set(digits))
    if missing:
        yield f"These letters have no digit: {listed(missing)}."
        return
    used = [digits[letter] for letter in sorted(metadata["letters"])]
    repeated = sorted({digit for digit in used if used.count(digit) > 1})
    if repeated:
        yield f"More than one letter has the digit {listed(repeated)}."
    words, result = metadata["words_letters"], metadata["result_letters"]
    if not metadata["allow_leading_zero"]:
        for word in (*words, result):
            if digits[word[0]] == 0:
                yield f"{word} begins with 0."
    values = [_word_value(word, digits) for word in words]
    if sum(values) != _word_value(result, digits):
        added = " + ".join(map(str, values))
        yield f"With these digits {added} is {sum(values)}, but {result} is {_word_value(result, digits)}."


def prime_factorization(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The product of the factors, and whether they are prime."""
    factors = [whole_number(part) for part in re.split("[×x*]", answer)]
    known = [factor for factor in factors if factor is not None]
    if len(known) < len(factors) or len(known) > 64:
        yield "The answer should be whole numbers with × between them."
        return
    if prod(known) != metadata["number"]:
        yield f"The product of the factors is {prod(known)} instead of {metadata['number']}."
    composite = [factor for factor in known if factor <= _LARGEST_FACTOR and not _is_prime(factor)]
    if composite:
        yield f"Not prime: {listed(composite)}."


def gcd(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Whether the answer divides all numbers."""
    divisor = whole_number(answer)
    if divisor is None or divisor < 1:
        return
    for number in metadata["numbers"]:
        if number % divisor:
            yield f"{divisor} does not divide {number}."


def lcm(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Whether the answer is a multiple of all numbers."""
    multiple = whole_number(answer)
    if multiple is None or multiple < 1:
        return
    for number in metadata["numbers"]:
        if multiple % number:
            yield f"{multiple} is no multiple of {number}."


def base_conversion(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """Whether all digits exist in the base that is asked for."""
    base: int = metadata["target_base"]
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"[:base]
    foreign = sorted({sign for sign in answer.lower() if sign not in digits})
    if foreign:
        yield f"Base {base} has no {listed(map(repr, foreign))}."


def _value(expression: str) -> Fraction | None:
    """The value of an expression of whole numbers; None for any other text."""
    if len(expression) > _LONGEST_EXPRESSION or not re.fullmatch(r"[0-9+\-*/()\s]+", expression):
        return None
    try:
        return _value_of(ast.parse(" ".join(expression.split()), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, MemoryError, RecursionError):
        return None


def _value_of(node: ast.expr) -> Fraction:
    """Raises `ValueError` for all but sums, differences, products and quotients of whole numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value_of(node.left), _value_of(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value_of(node.operand)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return _value_of(node.operand)
    raise ValueError("not arithmetic")


def _word_value(word: str, digits: Mapping[str, int]) -> int:
    return int("".join(str(digits[letter]) for letter in word))


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True
