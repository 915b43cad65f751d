"""The Open Inference Protocol's messages <-> arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import DecodeError

from inference import grpc_service_pb2 as pb
from services.gpuagent.worker import tensors
from services.gpuagent.worker.classification import classes_wanted, classified
from services.gpuagent.worker.model_port import Request
from services.gpuagent.worker.onnx_engine import Signature, TensorSpec
from services.gpuagent.worker.tensors import Array
from services.gpuagent.worker.work_messages import LARGE_BYTES, Body
from services.kit.errors import InvalidArgument, NotFound
from services.kit.protobuf_wire import taken_out
from services.kit.tensor_shape import elements_of

VERSION: Final = "1"
PLATFORM: Final = "onnxruntime_onnx"

_SIZE_BYTES: Final = 4  # of an element of a BYTES tensor, and of a UINT32
_NONE: Final = "the request is not a serialized ModelInferRequest"
_RAW: Final = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number


@dataclass(frozen=True, slots=True)
class Inference(Request):
    """A valid request.

    Attributes:
        model: As the client named it.
        feeds: One array per input of the model; `items` is their first dimension.
        size_bytes: Size of the inputs, bytes.
        outputs: Which outputs of the signature are wanted.
        classes: How many classes, of outputs whose highest values alone are wanted.
    """

    model: str
    feeds: Mapping[str, Array]
    size_bytes: int
    outputs: Sequence[int]
    classes: Mapping[int, int] = field(default_factory=dict)


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


def refuse_regions(request: pb.ModelInferRequest) -> None:
    """Refuse tensors in shared memory: no region of it is ever registered.

    Raises:
        InvalidArgument: There are some; `field` says where.
    """
    for number, given in enumerate(request.inputs):
        _refuse_region(given.parameters, f"inputs[{number}]")
    for number, wanted in enumerate(request.outputs):
        _refuse_region(wanted.parameters, f"outputs[{number}]")


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


def _refuse_region(parameters: Iterable[str], field_: str) -> None:
    for name in parameters:
        if name.startswith("shared_memory_"):
            raise InvalidArgument.at(
                f"{field_}.parameters.{name}",
                "there is no shared memory with clients: no region is registered; tensors travel"
                " in requests and answers",
            )


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
    inputs, known = request.inputs, signature.by_name
    raw = request.raw_input_contents if raw is None else raw
    if raw and len(raw) != len(inputs):
        raise InvalidArgument(
            f"raw_input_contents must have one entry per input, {len(inputs)}, got {len(raw)}",
            field="raw_input_contents",
        )
    feeds: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    shapes: list[tuple[str, tuple[int, ...]]] = []
    size_bytes = 0
    for number, tensor in enumerate(inputs):
        name = tensor.name
        if name not in known:
            has = ", ".join(known)
            raise InvalidArgument.at(
                f"inputs[{number}].name", f"no input {name!r}; the model has {has}"
            )
        if name in feeds:
            raise InvalidArgument.at(f"inputs[{number}].name", f"{name!r} is given twice")
        if tensor.parameters:
            _refuse_region(tensor.parameters, f"inputs[{number}]")
        array = feeds[name] = _array(tensor, known[name], number, raw[number] if raw else None)
        shape = array.shape
        if shape:
            sizes[name] = shape[0]
        shapes.append((name, shape[1:]))
        size_bytes += array.nbytes
    if len(feeds) != len(known):
        missing = ", ".join(name for name in known if name not in feeds)
        raise InvalidArgument.at("inputs", f"{missing} missing")
    items = {*sizes.values()} or {1}
    if len(items) > 1 and signature.batches:
        raise InvalidArgument.at("inputs", f"all must bring the same number of items, got {sizes}")
    shapes.sort()
    return Inference(
        request.model_name,
        feeds,
        size_bytes,
        *(_outputs(request, signature) if request.outputs else (range(len(signature.outputs)), {})),
        id=request.id,
        items=max(items),
        kind=tuple(shapes) if signature.batches else None,
    )


def response(inference: Inference, signature: Signature, results: Sequence[Array]) -> bytes:
    """Return a serialized ModelInferResponse with the wanted outputs.

    Args:
        inference: The request.
        signature: The model's.
        results: One array per output of the signature, this request's items only.

    Raises:
        InvalidArgument: Classes of an output that is too large are wanted.
    """
    answer = pb.ModelInferResponse(
        model_name=inference.model, model_version=VERSION, id=inference.id
    )
    for number in inference.outputs:
        spec, array, datatype = signature.outputs[number], results[number], ""
        if count := inference.classes.get(number):
            array, datatype = classified(array, count, batches=signature.batches), tensors.BYTES
        datatype = datatype or spec.datatype
        answer.outputs.add(name=spec.name, datatype=datatype, shape=array.shape)
        answer.raw_output_contents.append(tensors.encode(array, datatype))
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
    """Return the parameter to append to a GPU's responses: their execution provider.

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


def _array(
    tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec, number: int, raw: Body | None
) -> Array:
    """Return an input's array.

    Args:
        tensor: The input.
        spec: Its entry in the signature.
        number: Its place in the request.
        raw: Its entry of raw_input_contents; None: it is in `contents`.

    Raises:
        InvalidArgument: It does not fit the signature, or is not what it says.
    """
    elements_of(tensor.shape, field=f"inputs[{number}].shape")
    shape, datatype = tuple(tensor.shape), spec.datatype
    if tensor.datatype != datatype or len(shape) != len(spec.shape):
        raise _unfit(tensor, spec, number)
    least = 1  # items
    for size, only in zip(shape, spec.shape, strict=True):
        if size < least or only not in (-1, size):
            raise _unfit(tensor, spec, number)
        least = 0
    if raw is not None and tensor.HasField("contents"):
        raise InvalidArgument.at(
            f"inputs[{number}].contents",
            f"{tensor.name!r}: give raw_input_contents or contents, not both",
        )
    field = f"raw_input_contents[{number}]"
    try:
        if raw is not None:
            return tensors.decode(raw, datatype, shape, field=field)
        contents = tensors.DATATYPES[datatype].contents
        if contents:
            _require_contents(tensor, contents, number)
            field = f"inputs[{number}].contents.{contents}"
            elements = getattr(tensor.contents, contents)
            return tensors.from_elements(elements, datatype, shape, field=field)
    except InvalidArgument as error:
        problem = error.message.removeprefix(f"{field}: ")
        raise InvalidArgument(f"{field} ({tensor.name!r}): {problem}", field=field) from None
    raise InvalidArgument(
        f"inputs[{number}] ({tensor.name!r}): {datatype} travels as raw_input_contents only",
        field="raw_input_contents",
    )


def _require_contents(
    tensor: pb.ModelInferRequest.InferInputTensor, wanted: str, number: int
) -> None:
    """Check that elements are in the field of their datatype, and in no other."""
    others = [each.name for each, _ in tensor.contents.ListFields() if each.name != wanted]
    if others:
        raise InvalidArgument.at(
            f"inputs[{number}].contents.{others[0]}",
            f"{tensor.datatype} ({tensor.name!r}) travels in {wanted}, and in that field only",
        )


def _unfit(
    tensor: pb.ModelInferRequest.InferInputTensor, spec: TensorSpec, number: int
) -> InvalidArgument:
    """Return the error of an input of another datatype or shape than the signature's."""
    field, shape = f"inputs[{number}]", list(tensor.shape)
    if tensor.datatype != spec.datatype:
        return InvalidArgument.at(
            f"{field}.datatype", f"{spec.name!r} takes {spec.datatype}, got {tensor.datatype!r}"
        )
    if len(shape) == len(spec.shape) and shape[:1] == [0]:
        return InvalidArgument.at(
            f"{field}.shape", f"the first size of {spec.name!r} must be >= 1, got 0"
        )
    return InvalidArgument.at(
        f"{field}.shape", f"{spec.name!r} takes {list(spec.shape)} (-1: any size), got {shape}"
    )


def _outputs(
    request: pb.ModelInferRequest, signature: Signature
) -> tuple[list[int], dict[int, int]]:
    """Return the places of the outputs that a request names, and how many classes of which."""
    places = {spec.name: place for place, spec in enumerate(signature.outputs)}
    classes: dict[int, int] = {}
    for at, wanted in enumerate(request.outputs):
        if wanted.name not in places:
            problem = f"no output {wanted.name!r}"
            if kind := signature.left_out.get(wanted.name):
                problem = f"output {wanted.name!r} is a {kind}, which the protocol cannot carry"
            raise InvalidArgument.at(
                f"outputs[{at}].name", f"{problem}; the model has {', '.join(places)}"
            )
        if not wanted.parameters:
            continue
        _refuse_region(wanted.parameters, f"outputs[{at}]")
        place = places[wanted.name]
        if count := classes_wanted(wanted, signature.outputs[place].datatype, f"outputs[{at}]"):
            classes[place] = count
    return [places[wanted.name] for wanted in request.outputs], classes
