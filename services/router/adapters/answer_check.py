"""Check of what a worker answers: every figure can be, and every answer is the request's.

Answers are read field by field, and descriptions of outputs once: tensors are never decoded.
"""

import math
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from inference import grpc_service_pb2 as pb
from services.kit.power_limits import MOST_GPU_W, MOST_OVER_LIMIT
from services.kit.protobuf_wire import BYTES, read_varint
from services.kit.request_cost import ENERGY_ERRORS, Cost, Usage
from services.router.core.model import Request

MOST_IDLE_S: Final = 86_400.0
"""Time before it was known for which a worker may state idle energy, s."""

MOST_TOKENS_PER_S: Final = 1e5
MOST_ADDED_TOKENS: Final = 2**16
"""Tokens of a prompt beyond one a byte of its request: a template's."""

MOST_ITEMS: Final = 2**31 - 1
"""Items of a batch: bytes of the largest request."""

_MOST_SIZES: Final = 64
_METHODS: Final = frozenset({"", *ENERGY_ERRORS})
_CLOCKS_DIFFER: Final = 1.1
_SLACK_S: Final = 1.0

_MODEL, _ID, _OUTPUT, _CONTENTS = (
    pb.ModelInferResponse.DESCRIPTOR.fields_by_name[name].number
    for name in ("model_name", "id", "outputs", "raw_output_contents")
)
_ITEM_BYTES: Final = {
    "BOOL": 1,
    **{f"{kind}{bits}": bits // 8 for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)},
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
_SIZE_BYTES: Final = 4
"""Before each element of a BYTES tensor."""

_MOST_KNOWN: Final = 256
_LONGEST_KNOWN: Final = 512


class WrongAnswer(Exception):
    """A worker's result that cannot be one of the request."""


class CostCheck:
    """The check of what one worker's requests cost.

    A request was in its worker since it arrived, at most; all together took no more energy than
    the GPU can draw from the limit of its power, since the worker is known.
    """

    def __init__(self, power_limit_w: float, since_s: float) -> None:
        """Start with a worker that has answered nothing yet.

        Args:
            power_limit_w: Limit of what its meter shows, W; 0: not known.
            since_s: Monotonic time since which it may have had requests, s.
        """
        self._most_w = (power_limit_w or MOST_GPU_W) * MOST_OVER_LIMIT
        self._since_s = since_s - _SLACK_S
        self._stated_j = self._stated_idle_j = 0.0

    def __call__(self, cost: Cost, request: Request, now_s: float) -> None:
        """Check what a request cost.

        Args:
            cost: As the worker states it.
            request: The request.
            now_s: Monotonic time, s.

        Raises:
            WrongAnswer: A figure cannot be.
        """
        most_s = (now_s - request.arrived_s) * _CLOCKS_DIFFER + _SLACK_S
        most_w, known_s = self._most_w, now_s - self._since_s
        stated_j = self._stated_j + cost.energy_j
        stated_idle_j = self._stated_idle_j + cost.idle_energy_j
        if not (  # not a number neither
            0 <= cost.energy_j <= most_w * most_s
            and stated_j <= most_w * known_s
            and cost.idle_energy_j >= 0
            and stated_idle_j <= most_w * (known_s + MOST_IDLE_S)
            and 0 <= cost.queue_s <= most_s
            and 0 <= cost.compute_s <= most_s
            and cost.batch_size <= MOST_ITEMS
            and cost.items <= MOST_ITEMS
            and cost.method in _METHODS
            and (cost.usage is None or _may_be(cost.usage, request, most_s))
        ):
            raise WrongAnswer(
                f"a receipt that cannot be, {most_s:.3g} s after it came and {known_s:.3g} s after"
                f" the first, at {most_w:.4g} W: {cost!r:.400}"
            )
        self._stated_j, self._stated_idle_j = stated_j, stated_idle_j


def _may_be(usage: Usage, request: Request, most_s: float) -> bool:
    return (
        usage.input_tokens <= len(request.body) + MOST_ADDED_TOKENS
        and usage.cached_tokens <= usage.input_tokens
        and usage.output_tokens <= MOST_TOKENS_PER_S * most_s
        and 0 <= usage.first_token_s <= most_s
        and 0 <= usage.token_s <= most_s
    )


class Contents(NamedTuple):
    """Raw contents of an output. Attributes: size_bytes, exact (else at least), is_raw (there)."""

    size_bytes: int
    is_raw: bool
    exact: bool


class AnswerCheck:
    """The check of one worker's answers.

    Shapes are compared with contents, not with what the file of a model or a server says of it:
    honest ones are wrong there, too.
    """

    def __init__(self) -> None:
        self._datatypes: dict[str, str] = {}
        self._known: dict[bytes, Contents] = {}

    def learn(self, metadata: bytes) -> None:
        """Take what the worker says of its outputs; none: any.

        Raises:
            DecodeError: It is not a serialized ModelMetadataResponse.
        """
        found = pb.ModelMetadataResponse.FromString(metadata)
        self._datatypes = {each.name: each.datatype for each in found.outputs}
        self._known.clear()

    def check(self, response: bytes, request: Request) -> None:  # noqa: C901, PLR0912 - a branch per field
        """Check a serialized ModelInferResponse: model, id, outputs, sizes of their contents.

        Raises:
            WrongAnswer: It is malformed, or cannot be the answer to the request.
        """
        model = answered = b""
        expected: list[Contents] = []
        sizes: list[int] = []
        position, end = 0, len(response)
        try:
            while position < end:
                tag, size, start = response[position], response[position + 1], position + 2
                if size >= 0x80:
                    if response[start] < 0x80:  # the usual case
                        size, start = size & 0x7F | response[start] << 7, start + 1
                    else:
                        size, start = read_varint(response, position + 1)
                position = start + size
                if position > end or tag & 7 != BYTES:
                    raise ValueError  # noqa: TRY301 - as where the bytes end
                field = tag >> 3
                if field == _CONTENTS:
                    sizes.append(size)
                elif field == _OUTPUT:
                    output = response[start:position]
                    found = self._known.get(output)
                    expected.append(self._read(output, request) if found is None else found)
                elif field == _MODEL:  # the last is valid
                    model = response[start:position]
                elif field == _ID:
                    answered = response[start:position]
        except (ValueError, IndexError, DecodeError) as error:
            raise WrongAnswer("no serialized inference.ModelInferResponse") from error
        if model != request.model.encode() or answered != request.id.encode():
            raise WrongAnswer(
                f"an answer of model {model!r:.64} with id {answered!r:.64} to a request for "
                f"{request.model!r} with id {request.id!r:.64}"
            )
        at = 0
        for each in expected:
            if not each.is_raw:
                continue
            size = sizes[at] if at < len(sizes) else -1
            if size < each.size_bytes or (size > each.size_bytes and each.exact):
                raise WrongAnswer(f"contents of {size} bytes for an output of {each.size_bytes}")
            at += 1
        if expected and at < len(sizes):
            raise WrongAnswer(f"{len(sizes)} contents for {at} outputs")

    def _read(self, output: bytes, request: Request) -> Contents:
        """Return what the raw contents of an output are like; classes are texts.

        Raises:
            DecodeError: It is not an output.
            WrongAnswer: The worker has no such output, or none has this shape.
        """
        found = pb.ModelInferResponse.InferOutputTensor.FromString(output)
        name, datatype, shape = found.name, found.datatype, found.shape
        wanted = self._datatypes.get(name) if self._datatypes else datatype
        is_class = datatype == "BYTES" != wanted and b"classification" in request.body
        if (
            (datatype != wanted and not is_class)
            or len(shape) > _MOST_SIZES
            or min(shape, default=0) < 0
        ):
            raise WrongAnswer(
                f"output {name!r:.64}, {datatype:.16} {shape[:8]}; its model has {self._datatypes}"
            )
        elements = math.prod(shape)
        typed = found.HasField("contents")
        if typed and elements > len(output):
            raise WrongAnswer(f"output {name!r:.64} has {len(output)} bytes for {shape[:8]}")
        item_bytes = _ITEM_BYTES.get(datatype)
        contents = Contents(
            elements * (item_bytes or _SIZE_BYTES),
            is_raw=not typed and "shared_memory_region" not in found.parameters,
            exact=item_bytes is not None,
        )
        if len(output) <= _LONGEST_KNOWN and not is_class:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[output] = contents
        return contents
