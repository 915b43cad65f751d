"""BERT's WordPiece tokenizer.

The `tokenizers` library would add a hub's client to the dependencies; this takes forty lines.

Source: Devlin et al., "BERT", NAACL 2019, and its reference code (uncased). `vocab.txt` is that
of bert-base-uncased, which MiniLM shares (Apache License 2.0).
"""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

UNKNOWN: Final = "[UNK]"
_LONGEST_WORD: Final = 100
_TABLE_SIZE: Final = 4096
_IDEOGRAPHS: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class _Spacing(dict[int, str]):
    """Replacement of each character: itself, nothing, or itself between spaces."""

    def __missing__(self, code: int) -> str:
        becomes = _spaced(chr(code))
        if len(self) < _TABLE_SIZE:  # hostile text may have any of a million characters
            self[code] = becomes
        return becomes


def _spaced(character: str) -> str:
    code, category = ord(character), unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if category in {"Mn", "Cc", "Cf", "Cs", "Co"} or code in {0, 0xFFFD}:
        return ""
    ascii_mark = code < 0x80 and not character.isalnum()
    if ascii_mark or category.startswith("P") or any(a <= code <= b for a, b in _IDEOGRAPHS):
        return f" {character} "
    return character


class WordPiece:
    """Greedy longest-match pieces of lower-cased words.

    Args:
        vocabulary: Pieces in the order of their numbers; those inside words begin with "##".
    """

    def __init__(self, vocabulary: Iterable[str]) -> None:
        self._numbers: Mapping[str, int] = {piece: i for i, piece in enumerate(vocabulary)}
        self._spacing = _Spacing()

    def number(self, piece: str) -> int:
        """Return a piece's number.

        Raises:
            KeyError: The piece is unknown.
        """
        return self._numbers[piece]

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text's pieces; unknown words are one `UNKNOWN` each."""
        plain = unicodedata.normalize("NFD", text.lower()).translate(self._spacing)
        return [number for word in plain.split() for number in self._pieces(word)]

    def _pieces(self, word: str) -> Iterator[int]:
        found: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST_WORD:
            prefix = "##" if start else ""
            for end in range(len(word), start, -1):
                number = self._numbers.get(prefix + word[start:end])
                if number is not None:
                    found.append(number)
                    start = end
                    break
            else:
                break
        if start < len(word):
            yield self._numbers[UNKNOWN]
        else:
            yield from found
