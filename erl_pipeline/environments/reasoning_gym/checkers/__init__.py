"""Which rules of a question an answer breaks, as far as the question itself shows it.

A checker reads the question's data and the policy's own answer, never the right answer, so that what it says
is true and gives nothing away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers import arithmetic, puzzles, words

Checker = Callable[[Mapping[str, Any], str], Iterator[str]]
"""Arguments: the metadata of the entry, and the answer. Yields a sentence for each broken rule."""

CHECKERS: Mapping[str, Checker] = {
    "base_conversion": arithmetic.base_conversion,
    "caesar_cipher": words.caesar_cipher,
    "countdown": arithmetic.countdown,
    "cryptarithm": arithmetic.cryptarithm,
    "fraction_simplification": arithmetic.fraction_simplification,
    "futoshiki": puzzles.futoshiki,
    "gcd": arithmetic.gcd,
    "graph_color": puzzles.graph_color,
    "group_anagrams": words.group_anagrams,
    "jugs": puzzles.jugs,
    "kakurasu": puzzles.kakurasu,
    "lcm": arithmetic.lcm,
    "letter_jumble": words.letter_jumble,
    "mini_sudoku": puzzles.sudoku,
    "n_queens": puzzles.n_queens,
    "palindrome_generation": words.palindrome_generation,
    "palindrome_partitioning": words.palindrome_partitioning,
    "prime_factorization": arithmetic.prime_factorization,
    "quantum_lock": puzzles.quantum_lock,
    "shortest_path": puzzles.shortest_path,
    "spell_backward": words.spell_backward,
    "sudoku": puzzles.sudoku,
    "survo": puzzles.survo,
    "tower_of_hanoi": puzzles.tower_of_hanoi,
    "word_ladder": words.word_ladder,
    "word_sequence_reversal": words.word_sequence_reversal,
    "word_sorting": words.word_sorting,
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
