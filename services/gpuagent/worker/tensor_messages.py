"""The Open Inference Protocol's messages <-> arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker import tensors
from services.gpuagent.worker.model_port import Request
from services.gpuagent.worker.onnx_engine import Signature, TensorSpec
from services.gpuagent.worker.tensors import Array
from services.gpuagent.worker.work_messages import LARGE_BYTES, Body
from services.kit.errors import InvalidArgument, NotFound
from services.kit.protobuf_wire import taken_out

VERSION: Final = "1"
PLATFORM: Final = "onnxruntime_onnx"

_SIZE_BYTES: Final = 4  # of an element of a BYTES tensor, and of a UINT32
_NONE: Final = "the request is not a serialized ModelInferRequest"
_RAW: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number


@dataclass(frozen=True, slots=True)
class Inference(Request):
    """A request that was found right.

    Attributes:
        model: As the client named it.
        feeds: One array per input of the model; `items` is their first dimension.
        outputs: Which outputs of the signature are wanted.
    """

    model: str
    feeds: Mapping[str, Array]
    outputs: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Size of the inputs, bytes."""
        return sum(array.nbytes for array in self.feeds.values())


def parse(data: Body, signature: Signature, *, every_output: bool = False) -> Inference:
    """Read and check a serialized ModelInferRequest.

    Args:
        data: The request.
        signature: The model's.
        every_output: Whichever outputs it requests.

    Raises:
        InvalidArgument: It is not one, or not for this signature; `field` says where.
        NotFound: It names another version of the model.
    """
    raw: Sequence[Body] | None = None
    if len(data) >= LARGE_BYTES:
        try:
            data, raw = taken_out(memoryview(data), _RAW)
        except (ValueError, IndexError):
            raise InvalidArgument(_NONE) from None
    request = decode(data)
    if every_output:
        del request.outputs[:]
    return check(request, signature, raw)


def decode(data: Body) -> pb.ModelInferRequest:
    """Return a request.

    Raises:
        InvalidArgument: It is none.
        NotFound: It names another version of the model.
    """
    try:
        request = pb.ModelInferRequest.FromString(data)  # type: ignore[arg-type]  # a view, too
    except DecodeError:
        raise InvalidArgument(_NONE) from None
    if request.model_version not in ("", VERSION):
        raise NotFound(
            f"model {request.model_name!r} has version {VERSION} only, not "
            f"{request.model_version!r}",
            field="model_version",
        )
    return request


def check(
    request: pb.ModelInferRequest, signature: Signature, raw: Sequence[Body] | None = None
) -> Inference:
    """Check a request.

    Args:
        request: The request.
        signature: The model's.
        raw: Its raw_input_contents where they were taken out of it; None: they were not.

    Raises:
        InvalidArgument: It is not for this signature; `field` says where.
    """
    feeds = dict(_feeds(request, signature, request.raw_input_contents if raw is None else raw))
    items = _items(request, feeds, signature)
    shapes = tuple(sorted((name, array.shape[1:]) for name, array in feeds.items()))
    return Inference(
        request.model_name,
        feeds,
        _outputs(request, signature),
        id=request.id,
        items=items,
        kind=shapes if signature.batches else None,
    )


def response(inference: Inference, signature: Signature, results: Sequence[Array]) -> bytes:
    """Return a serialized ModelInferResponse with the wanted outputs.

    Args:
        inference: The request.
        signature: The model's.
        results: One array per output of the signature, this request's items only.
    """
    answer = pb.ModelInferResponse(
        model_name=inference.model, model_version=VERSION, id=inference.id
    )
    for number in inference.outputs:
        spec, array = signature.outputs[number], results[number]
        answer.outputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
        answer.raw_output_contents.append(tensors.encode(array, spec.datatype))
    return answer.SerializeToString()


def tokens_of(answer: pb.ModelInferResponse) -> tuple[int, int]:
    """Return the tokens that a part of a text brings, and those of its prompt; 0: not stated.

    A part with text whose server states no tokens counts as one.
    """
    found: dict[str, int] = {}
    for place, tensor in enumerate(answer.outputs):
        raw = answer.raw_output_contents[place] if place < len(answer.raw_output_contents) else b""
        if tensor.name == "text_output":
            texts = tensor.contents.bytes_contents
            found[tensor.name] = int(len(raw) > _SIZE_BYTES or any(texts))
        elif tensor.name in ("num_input_tokens", "num_output_tokens"):
            stated = next(iter(tensor.contents.uint_contents), 0)
            found[tensor.name] = int.from_bytes(raw[:_SIZE_BYTES], "little") if raw else stated
    made = found.get("num_output_tokens", found.get("text_output", 0))
    return made, found.get("num_input_tokens", 0)


def provider_parameter(provider: str) -> bytes:
    """Return what to append to responses that a GPU computed: their execution provider.

    Args:
        provider: ONNX Runtime's name; nothing is appended for the CPU's.
    """
    found = pb.ModelInferResponse()
    if provider != "CPUExecutionProvider":
        found.parameters["execution_provider"].string_param = provider
    return found.SerializeToString()


def metadata(signature: Signature, platform: str = PLATFORM) -> bytes:
    """Return a serialized ModelMetadataResponse without the model's name.

    Args:
        signature: The model's.
        platform: What computes.
    """

    def describe(specs: Sequence[TensorSpec]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
        return [
            pb.ModelMetadataResponse.TensorMetadata(
                name=spec.name, datatype=spec.datatype, shape=spec.shape
            )
            for spec in specs
        ]

    return pb.ModelMetadataResponse(
        versions=[VERSION],
        platform=platform,
        inputs=describe(signature.inputs),
        outputs=describe(signature.outputs),
    ).SerializeToString()


def _feeds(
    request: pb.ModelInferRequest, signature: Signature, raw: Sequence[Body]
) -> Iterator[tuple[str, Array]]:
    known = {spec.name: spec for spec in signature.inputs}
    if raw and len(raw) != len(request.inputs):
        raise InvalidArgument(
            f"raw_input_contents must have one entry per input, {len(request.inputs)}, "
            f"got {len(raw)}",
            field="raw_input_contents",
        )
    seen: set[str] = set()
    for number, tensor in enumerate(request.inputs):
        field = f"inputs[{number}]"
        if tensor.name not in known:
            raise InvalidArgument.at(
                f"{field}.name", f"no input {tensor.name!r}; the model has {', '.join(known)}"
            )
        if tensor.name in seen:
            raise InvalidArgument.at(f"{field}.name", f"{tensor.name!r} is given twice")
        seen.add(tensor.name)
        _check(tensor, known[tensor.name], field)
        if raw and tensor.HasField("contents"):
            raise InvalidArgument.at(
                f"{field}.contents",
                f"{tensor.name!r}: give raw_input_contents or contents, not both",
            )
        yield tensor.name, _array(tensor, raw[number] if raw else None, number)
    missing = [name for name in known if name not in seen]
    if missing:
        raise InvalidArgument.at("inputs", f"{', '.join(missing)} missing")


def _check(tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec, field: str) -> None:
    if tensor.datatype != spec.datatype:
        raise InvalidArgument.at(
            f"{field}.datatype", f"{spec.name!r} takes {spec.datatype}, got {tensor.datatype!r}"
        )
    shape = list(tensor.shape)
    fits = len(shape) == len(spec.shape) and all(
        size >= 0 and allowed in (-1, size) for size, allowed in zip(shape, spec.shape, strict=True)
    )
    if not fits:
        raise InvalidArgument.at(
            f"{field}.shape", f"{spec.name!r} takes {list(spec.shape)} (-1: any size), got {shape}"
        )


def _array(tensor: pb.ModelInferRequest.InferInputTensor, raw: Body | None, number: int) -> Array:
    if raw is not None:
        field = f"raw_input_contents[{number}]"
        return _named(tensor, tensors.decode, raw, field)
    contents = tensors.DATATYPES[tensor.datatype].contents
    if not contents:
        raise InvalidArgument(
            f"inputs[{number}] ({tensor.name!r}): "
            f"{tensor.datatype} travels as raw_input_contents only",
            field="raw_input_contents",
        )
    elements = getattr(tensor.contents, contents)
    field = f"inputs[{number}].contents.{contents}"
    return _named(tensor, tensors.from_elements, elements, field)


def _named(
    tensor: pb.ModelInferRequest.InferInputTensor,
    read: Callable[..., Array],
    given: Body | Sequence[Any],
    field: str,
) -> Array:
    """Return the array that `read` makes of what is given; its errors name the tensor."""
    try:
        return read(given, tensor.datatype, tensor.shape, field=field)
    except InvalidArgument as error:
        problem = error.message.removeprefix(f"{field}: ")
        raise InvalidArgument(f"{field} ({tensor.name!r}): {problem}", field=field) from None


def _items(request: pb.ModelInferRequest, feeds: Mapping[str, Array], signature: Signature) -> int:
    sizes = {name: array.shape[0] for name, array in feeds.items() if array.ndim}
    for number, tensor in enumerate(request.inputs):
        if sizes.get(tensor.name, 1) < 1:
            field = f"inputs[{number}].shape"
            problem = f"the first size of {tensor.name!r} must be >= 1, got 0"
            raise InvalidArgument.at(field, problem)
    if signature.batches and len(set(sizes.values())) > 1:
        raise InvalidArgument.at("inputs", f"all must bring the same number of items, got {sizes}")
    return max(sizes.values(), default=1)


def _outputs(request: pb.ModelInferRequest, signature: Signature) -> tuple[int, ...]:
    numbers = {spec.name: number for number, spec in enumerate(signature.outputs)}
    for at, wanted in enumerate(request.outputs):
        if wanted.name not in numbers:
            field = f"outputs[{at}].name"
            raise InvalidArgument.at(
                field, f"no output {wanted.name!r}; the model has {', '.join(numbers)}"
            )
    return tuple(numbers[wanted.name] for wanted in request.outputs) or tuple(numbers.values())
