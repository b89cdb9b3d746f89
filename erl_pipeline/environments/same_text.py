"""When two texts are the same to a reader, however Unicode writes them."""

from __future__ import annotations

import unicodedata

_KEPT = ("<super>", "<sub>", "<fraction>")
_UNSEEN = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))  # variation selectors


def uniform(text: str) -> str:
    """The text with one sign for what has several in Unicode.

    Accents are composed, and full-width letters and marks, ligatures and other forms of a sign become plain
    (NFKC). Exponents, indices and fractions stay, since 2\u00b2 is not 22. Taken out is what nobody sees:
    zero-width spaces and joiners, marks of direction, soft hyphens (all of category Cf) and variation
    selectors.
    """
    if text.isascii():
        return text
    composed = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", "".join(map(_plain, composed)))


def reading_key(text: str) -> str:
    """A key that is equal for texts which differ only in case, in white space, or as `uniform` says."""
    return " ".join(uniform(text).casefold().split())


def _plain(letter: str) -> str:
    if unicodedata.category(letter) == "Cf" or letter in _UNSEEN:
        return ""
    kept = unicodedata.decomposition(letter).startswith(_KEPT)
    return letter if kept else unicodedata.normalize("NFKC", letter)
