"""Proof that a network's items may share a batch: each answer is the same, whatever is beside it.

Two things are looked at. The file: no size may depend on data, or rows are what was found. The
network itself, with random inputs: n items give n rows; a row stays as it is, to the last bit, when
the other items change, since neither sizes nor kernels do; and it is that of the item alone but for
rounding. Comparing batches of one size needs no tolerance for int8, float16 or other kernels.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from services.kit.operators.core.data_dependence import data_dependent
from services.kit.operators.onnx_nodes import Nodes, read_nodes
from services.kit.operators.random_inputs import DATATYPES

Array = NDArray[Any]
Rows = Mapping[str, Array]
Run = Callable[[Rows], Sequence[Array]]
"""Runs the network: an array for each output."""

PROOF_S: Final = 0.5
"""Time after which nothing more is tried than what a proof needs at least, s."""
MAX_TRIALS: Final = 24
_LARGEST: Final = 16
"""Largest batch that is tried."""
_MOST_ELEMENTS: Final = 2**24
"""Elements of a batch beyond which larger ones are not tried."""

FREE_SIZES: Final = (16, 1, 32, 64, 224)
_HIGHEST: Final = (30_000, 1000, 100, 10, 2)
"""Bounds of random integers: indices of any table, of which the largest that runs are drawn."""
_WORDS: Final = ("", "a", "the", "Hello, world", "0", "-1.5", "2024-02-29", "é\U0001f33f")
_ROUNDING: Final = 16
"""Units in the last place that a row may differ by between runs of one batch size."""
_ALONE: Final = 0.05
"""Part of a row's largest value by which an item alone may differ: int8, float16, other kernels."""
_TIES: Final = 0.25
"""Share of rows that may differ by more: the winners of near ties, numbers that overflow."""


class _Refuted(Exception):
    """A proof that fails; the message says why."""


def why_alone(  # noqa: PLR0913 - a network is described by four of them
    file: Path,
    inputs: Sequence[Any],
    outputs: Sequence[str],
    run: Run,
    batch_size: int,
    *,
    free_sizes: Sequence[int] = FREE_SIZES,
) -> str:
    """Return why requests may not share a run of the network; "": they may. Blocks.

    Args:
        file: ONNX file.
        inputs: As ONNX Runtime describes them (`InferenceSession.get_inputs()`); the first size of
            each is free.
        outputs: Names of the outputs that `run` returns.
        run: Runs the network.
        batch_size: Largest batch that may come.
        free_sizes: Candidates for free sizes other than the first; the first one that runs is used.
    """
    try:
        nodes = read_nodes(file)
        if found := data_dependent(nodes.graph, nodes.functions):
            return f"{found} goes by what its inputs hold, not by their sizes alone"
        if batch_size > 1:
            _Prober(inputs, outputs, run, nodes, free_sizes).prove(min(batch_size, _LARGEST))
    except ValueError as error:
        return f"its operators cannot be read: {error}"
    except _Refuted as error:
        return str(error)
    return ""


class _Prober:
    """Draws items, and compares what the network makes of them."""

    def __init__(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[str],
        run: Run,
        nodes: Nodes,
        free_sizes: Sequence[int],
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._run = run
        self._random = np.random.default_rng(0)
        self._words = (*nodes.texts, *_WORDS)
        self._free = 1
        self._highest = {each.name: 2 for each in inputs}
        self._differing = self._compared = 0
        self._until_s = time.monotonic() + PROOF_S
        self._fit(free_sizes, nodes.texts)

    # ---- inputs that the network takes ---------------------------------------------------------

    def _fit(self, free_sizes: Sequence[int], texts: tuple[str, ...]) -> None:
        """Find sizes, texts and bounds of integers with which the network runs."""
        problem = ""
        for words in filter(None, (self._words, texts)):
            for self._free in free_sizes:
                self._words = words
                problem = self._problem()
                if not problem:
                    self._raise_bounds()
                    return
        raise _Refuted(f"no random input of it runs, so that nothing is proven: {problem:.200}")

    def _raise_bounds(self) -> None:
        for each in self._inputs:
            if "int" not in each.type:
                continue
            for self._highest[each.name] in _HIGHEST:
                if not self._problem():
                    break

    def _problem(self) -> str:
        """Return why an item with the highest integers does not run; "": it does."""
        items = self._drawn(1)
        for name, each in items.items():
            if each.dtype.kind in "iu":
                each[..., -1:] = min(self._highest[name] - 1, int(np.iinfo(each.dtype).max))
        try:
            self._answered(items, 1)
        except RuntimeError as error:
            return str(error)
        return ""

    def _drawn(self, count: int, *, plain: bool = False) -> dict[str, Array]:
        """Return random items; `plain`: integers are 0 and 1."""
        return {each.name: self._tensor(each, count, plain=plain) for each in self._inputs}

    def _tensor(self, wanted: Any, count: int, *, plain: bool) -> Array:
        sizes = (size if isinstance(size, int) else self._free for size in wanted.shape[1:])
        shape = (count, *sizes)
        if wanted.type == "tensor(string)":
            return self._random.choice(np.array(self._words, object), shape)
        dtype = np.dtype(DATATYPES[wanted.type])
        if dtype.kind == "f":
            # Items of very different sizes: what reaches another one's answer is seen there.
            scales = 10.0 ** self._random.uniform(-2, 3, (count, *[1] * (len(shape) - 1)))
            return _aligned((self._random.standard_normal(shape) * scales).astype(dtype))
        most = 2 if plain or dtype.kind == "b" else self._highest[wanted.name]
        if dtype.kind in "iu":
            most = min(most, int(np.iinfo(dtype).max))
        values = self._random.integers(0, most, shape).astype(dtype)
        values[..., :1] = 1  # of a mask, something remains
        return _aligned(values)

    # ---- the proof -----------------------------------------------------------------------------

    def prove(self, batch_size: int) -> None:
        """Compare.

        Raises:
            _Refuted: Items may not share a batch.
        """
        largest = max(_MOST_ELEMENTS // max(self._elements(), 1), 2)
        sizes = sorted({size for size in (2, 3, batch_size) if size <= min(batch_size, largest)})
        for trial, size in zip(range(MAX_TRIALS), cycle(sizes), strict=False):
            self._try(size, plain=trial // len(sizes) % 2 == 1)
            if self._compared and self._late:
                break
        if not self._compared:
            raise _Refuted("no random batch of it runs, so that nothing is proven")
        if self._differing > _TIES * self._compared:
            raise _Refuted("an item alone has another answer than in a batch")

    @property
    def _late(self) -> bool:
        return time.monotonic() > self._until_s

    def _elements(self) -> int:
        """Return the elements of an item."""
        shapes = (each.shape[1:] for each in self._inputs)
        return sum(math.prod(s if isinstance(s, int) else self._free for s in sh) for sh in shapes)

    def _try(self, size: int, *, plain: bool) -> None:
        items = self._drawn(size, plain=plain)
        try:
            alone = [self._answered(_item(items, place), 1) for place in range(size)]
        except RuntimeError:
            return  # the network does not take these
        try:
            together = self._answered(items, size)
        except RuntimeError as error:
            raise _Refuted(f"it does not run with {size} items: {error!s:.200}") from None
        for place, answer in enumerate(alone):
            for whole, row in zip(together, answer, strict=True):
                self._compared += 1
                self._differing += _difference(whole[place : place + 1], row) > _ALONE
        for place in (size - 1, 0):
            for others in self._others(size, plain=plain):
                self._compare_beside(items, place, others, together)
                if self._late:
                    return

    def _others(self, size: int, *, plain: bool) -> Sequence[dict[str, Array]]:
        """Return batches whose items are to stand beside the one that is compared."""
        other, poison = self._drawn(size, plain=plain), self._drawn(size, plain=plain)
        floats = [each for each in poison.values() if each.dtype.kind == "f"]
        for each in floats:
            each[:] = np.nan
        return (other, poison) if floats else (other,)

    def _compare_beside(
        self, items: Rows, place: int, others: dict[str, Array], together: Sequence[Array]
    ) -> None:
        for name, each in items.items():
            others[name][place] = each[place]
        try:
            found = self._answered(others, len(together[0]))
        except RuntimeError:
            return  # a batch that fails is run again, item by item
        for index, (one, two) in enumerate(zip(together, found, strict=True)):
            difference = _difference(one[place : place + 1], two[place : place + 1])
            if difference > _ROUNDING * _unit(one) and difference > 4 * self._noise(
                items, together, index
            ):
                name = self._outputs[index]
                raise _Refuted(f"an item's {name!r} depends on the other items of its batch")

    def _noise(self, items: Rows, together: Sequence[Array], index: int) -> float:
        """Return how much an output of one and the same batch differs from run to run."""
        copies = {name: _aligned(each) for name, each in items.items()}
        again = self._answered(copies, len(together[0]))
        noise = _difference(together[index], again[index])
        if noise > _ALONE:
            raise _Refuted("its answers to one batch differ from run to run")
        return noise

    def _answered(self, items: Rows, size: int) -> Sequence[Array]:
        """Return what the network makes of items.

        Raises:
            RuntimeError: It does not run.
            _Refuted: An output has not one row for each item.
        """
        try:
            found = self._run(items)
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise RuntimeError(" ".join(str(error).split()) or type(error).__name__) from error
        for name, each in zip(self._outputs, found, strict=True):
            if each.shape[:1] != (size,):
                rows = len(each) if each.ndim else "no"
                raise _Refuted(f"{size} items give {rows} rows of {name!r}")
        return found


def _difference(one: Array, two: Array) -> float:
    """Return the largest difference, as a part of the largest value; of what is no float: 1 or 0.

    Infinite: they are of another shape, or not a number in different places.
    """
    if one.shape != two.shape:
        return math.inf
    if one.dtype.kind != "f":
        return float(not np.array_equal(one, two))
    if not one.size or np.array_equal(one, two, equal_nan=True):
        return 0.0
    one, two = one.astype(np.float64), two.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(two)):
        return math.inf
    scale = max(np.abs(one[finite]).max(initial=0.0), np.abs(two[finite]).max(initial=0.0))
    return float(np.abs(one[finite] - two[finite]).max(initial=0.0) / (scale or 1.0))


def _item(items: Rows, place: int) -> Rows:
    return {name: _aligned(each[place : place + 1]) for name, each in items.items()}


def _unit(array: Array) -> float:
    return float(np.finfo(array.dtype).eps) if array.dtype.kind == "f" else 0.0


def _aligned(array: Array) -> Array:
    """Return a copy at a multiple of 64 bytes: some kernels add up in an order by that."""
    if array.dtype == object:
        return array.copy()
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
