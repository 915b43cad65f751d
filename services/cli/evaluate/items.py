"""Multiple-choice questions, made here: small facts, orders, sums and words.

They compare the variants of one model, sizes and quantisations of a family, and do not rank
different models. Text and code are this project's, under its licence.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

CHOICES: Final = 4

CAPITALS: Final = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "Austria": "Vienna", "Japan": "Tokyo", "China": "Beijing",
    "Russia": "Moscow", "Egypt": "Cairo", "Greece": "Athens", "Poland": "Warsaw",
    "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima",
    "Kenya": "Nairobi", "Thailand": "Bangkok", "Hungary": "Budapest", "Iran": "Tehran",
}  # fmt: skip
OPPOSITES: Final = {
    "hot": "cold", "big": "small", "fast": "slow", "high": "low", "early": "late",
    "old": "young", "happy": "sad", "full": "empty", "light": "dark", "hard": "soft",
    "open": "closed", "rich": "poor", "strong": "weak", "wet": "dry", "near": "far",
    "loud": "quiet", "long": "short", "deep": "shallow", "sharp": "blunt", "clean": "dirty",
    "cheap": "expensive", "brave": "cowardly",
}  # fmt: skip
KINDS: Final[Mapping[str, Sequence[str]]] = {
    "an animal": ("horse", "tiger", "rabbit", "sheep", "camel", "eagle", "salmon", "whale"),
    "a fruit": ("apple", "banana", "cherry", "grape", "lemon", "peach", "mango", "plum"),
    "a colour": ("red", "blue", "green", "yellow", "purple", "orange", "brown", "grey"),
    "a tool": ("hammer", "saw", "drill", "wrench", "chisel", "pliers", "axe", "shovel"),
    "a metal": ("iron", "copper", "gold", "silver", "tin", "lead", "zinc", "nickel"),
    "an instrument": ("violin", "piano", "trumpet", "guitar", "flute", "drum", "harp", "cello"),
}
DAYS: Final = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """A question.

    Attributes:
        question: Its text.
        choices: CHOICES answers of one word each, all different.
        right: Index of the right one.
    """

    question: str
    choices: tuple[str, ...]
    right: int

    def text(self, *, solved: bool = False) -> str:
        """Return it as a prompt shows it; with its answer where `solved`."""
        answer = f" {self.choices[self.right]}" if solved else ""
        choices = ", ".join(self.choices)
        return f"Question: {self.question}\nChoices: {choices}\nAnswer:{answer}"

    def chosen(self, answer: str) -> int | None:
        """Return the choice that a generated text begins with; None: it names none."""
        said = re.findall(r"\w+", answer.lower())[:1]
        named = [at for at, each in enumerate(self.choices) if [each.lower()] == said]
        return named[0] if named else None


def items(count: int, seed: int = 0) -> list[Item]:
    """Return questions of all kinds in turn, none twice.

    Args:
        count: How many, 1 to 1000.
        seed: Of the choice; equal seeds give equal questions.
    """
    draw = random.Random(seed)  # noqa: S311 - questions, no secret
    kinds, found = tuple(MAKERS), dict[str, Item]()
    while len(found) < count:
        item = MAKERS[kinds[len(found) % len(kinds)]](draw)
        found.setdefault(f"{item.question} {sorted(item.choices)}", item)
    return list(found.values())


def prompt(item: Item, shown: Sequence[Item]) -> str:
    """Return a prompt: solved questions, and then this one."""
    return "\n\n".join((*(each.text(solved=True) for each in shown), item.text()))


def _item(draw: random.Random, question: str, right: str, wrong: Sequence[str]) -> Item:
    others = sorted(set(wrong) - {right})
    choices = [right, *draw.sample(others, CHOICES - 1)]
    draw.shuffle(choices)
    return Item(question, tuple(choices), choices.index(right))


def _capital(draw: random.Random) -> Item:
    country = draw.choice(sorted(CAPITALS))
    question = f"What is the capital of {country}?"
    return _item(draw, question, CAPITALS[country], tuple(CAPITALS.values()))


def _opposite(draw: random.Random) -> Item:
    pairs = OPPOSITES | {other: word for word, other in OPPOSITES.items()}
    word = draw.choice(sorted(pairs))
    wrong = [other for other in pairs if other != word]
    return _item(draw, f"What is the opposite of {word}?", pairs[word], wrong)


def _kind(draw: random.Random) -> Item:
    kind = draw.choice(sorted(KINDS))
    wrong = [word for other, words in KINDS.items() if other != kind for word in words]
    return _item(draw, f"Which of these is {kind}?", draw.choice(KINDS[kind]), wrong)


def _sum(draw: random.Random) -> Item:
    one, two = draw.randint(2, 60), draw.randint(2, 60)
    wrong = [str(one + two + by) for by in (-10, -2, -1, 1, 2, 10)]
    return _item(draw, f"What is {one} + {two}?", str(one + two), wrong)


def _difference(draw: random.Random) -> Item:
    two = draw.randint(2, 40)
    right = draw.randint(12, 60)
    wrong = [str(right + by) for by in (-10, -2, -1, 1, 2, 10)]
    return _item(draw, f"What is {right + two} - {two}?", str(right), wrong)


def _largest(draw: random.Random) -> Item:
    numbers = sorted(draw.sample(range(10, 1000), CHOICES))
    return _item(
        draw, "Which number is the largest?", str(numbers[-1]), [str(n) for n in numbers[:-1]]
    )


def _next(draw: random.Random) -> Item:
    start, step = draw.randint(1, 30), draw.randint(2, 9)
    shown = ", ".join(str(start + step * turn) for turn in range(4))
    right = start + 4 * step
    wrong = [str(right + by) for by in (-step, -1, 1, step, 2 * step)]
    return _item(draw, f"Which number comes next: {shown}?", str(right), wrong)


def _after(draw: random.Random) -> Item:
    names = draw.choice((DAYS, MONTHS))
    at = draw.randrange(len(names))
    word, right = draw.choice((("after", at + 1), ("before", at - 1)))
    answer = names[right % len(names)]
    wrong = [name for name in names if name != names[at]]
    return _item(draw, f"What comes directly {word} {names[at]}?", answer, wrong)


MAKERS: Final[Mapping[str, Callable[[random.Random], Item]]] = {
    "capitals": _capital,
    "opposites": _opposite,
    "kinds": _kind,
    "sums": _sum,
    "differences": _difference,
    "largest": _largest,
    "sequences": _next,
    "calendar": _after,
}
