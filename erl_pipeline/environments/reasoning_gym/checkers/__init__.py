"""Which rules of a question an answer breaks, as far as the question itself shows it.

A checker reads the question's data and the policy's own answer, never the right answer, so that what it says
is true and gives nothing away.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers import puzzles, words_and_numbers

Checker = Callable[[Mapping[str, Any], str], Iterator[str]]
"""Arguments: the metadata of the entry, and the answer. Yields a sentence for each broken rule."""

CHECKERS: Mapping[str, Checker] = {
    "base_conversion": words_and_numbers.base_conversion,
    "caesar_cipher": words_and_numbers.caesar_cipher,
    "countdown": words_and_numbers.countdown,
    "cryptarithm": words_and_numbers.cryptarithm,
    "futoshiki": puzzles.futoshiki,
    "gcd": words_and_numbers.gcd,
    "graph_color": puzzles.graph_color,
    "group_anagrams": words_and_numbers.group_anagrams,
    "jugs": puzzles.jugs,
    "kakurasu": puzzles.kakurasu,
    "lcm": words_and_numbers.lcm,
    "mini_sudoku": puzzles.sudoku,
    "n_queens": puzzles.n_queens,
    "palindrome_generation": words_and_numbers.palindrome_generation,
    "palindrome_partitioning": words_and_numbers.palindrome_partitioning,
    "prime_factorization": words_and_numbers.prime_factorization,
    "quantum_lock": puzzles.quantum_lock,
    "shortest_path": puzzles.shortest_path,
    "spell_backward": words_and_numbers.spell_backward,
    "sudoku": puzzles.sudoku,
    "survo": puzzles.survo,
    "tower_of_hanoi": puzzles.tower_of_hanoi,
    "word_ladder": words_and_numbers.word_ladder,
    "word_sequence_reversal": words_and_numbers.word_sequence_reversal,
}
"""Dataset -> its checker."""

_MOST = 3
_LONGEST = 5_000


def broken_rules(name: str, metadata: Mapping[str, Any], answer: str) -> list[str]:
    """The first broken rules, as sentences; none where there is no checker, or the answer is too long."""
    checker = CHECKERS.get(name)
    if checker is None or len(answer) > _LONGEST:
        return []
    return list(islice(checker(metadata, answer), _MOST))
