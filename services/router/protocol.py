"""What the Open Inference Protocol tells about models: metadata, Triton's config, statistics."""

from __future__ import annotations

from inference import grpc_service_pb2 as pb
from inference import model_config_pb2 as config_pb
from services.kit.errors import Unavailable
from services.router.dispatcher import Dispatcher
from services.router.link import Hello
from services.router.switchboard import VERSION
from services.router.tally import Span, Tally

EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "statistics",
    "model_configuration",
    "cinquefoil_receipts",
)

_HELLO_RETRY_S = 1.0


def metadata(model: str, hello: Hello | None) -> pb.ModelMetadataResponse:
    """Return a model's metadata as its workers told it.

    Raises:
        Unavailable: No worker has said hello yet.
    """
    found = pb.ModelMetadataResponse.FromString(_told(model, hello).metadata)
    found.name = model
    if not found.versions:
        found.versions.append(VERSION)
    return found


def _told(model: str, hello: Hello | None) -> Hello:
    if hello is None:
        raise Unavailable(
            f"no instance of model {model!r} has said yet what its tensors are",
            reason="NO_INSTANCE",
            retry_after_s=_HELLO_RETRY_S,
        )
    return hello


def config(dispatcher: Dispatcher, hello: Hello | None) -> config_pb.ModelConfig:
    """Return Triton's view of a model; see `metadata` for errors.

    A model batches where the first dimension of every tensor is free; Triton's config leaves that
    dimension out. Its instances may batch differently: the largest batch counts.
    """
    routes = dispatcher.routes
    known = metadata(routes.model, hello)
    tensors = (*known.inputs, *known.outputs)
    batches = all(tensor.shape and tensor.shape[0] == -1 for tensor in tensors)
    sizes = (
        _told(routes.model, hello).credits,
        *(lane.credits for lane in dispatcher.lanes.values()),
    )
    variants = sorted({instance.variant for instance in routes.instances})
    found = config_pb.ModelConfig(
        name=routes.model,
        platform=known.platform,
        backend="onnxruntime",
        max_batch_size=max(sizes) if batches else 0,
        input=[
            config_pb.ModelInput(
                name=tensor.name, data_type=_type(tensor.datatype), dims=tensor.shape[batches:]
            )
            for tensor in known.inputs
        ],
        output=[
            config_pb.ModelOutput(
                name=tensor.name, data_type=_type(tensor.datatype), dims=tensor.shape[batches:]
            )
            for tensor in known.outputs
        ],
        parameters={"variants": config_pb.ModelParameter(string_value=",".join(variants))},
    )
    if batches:
        found.dynamic_batching.SetInParent()
    return found


def _type(datatype: str) -> config_pb.DataType.ValueType:
    """Return Triton's enum of the protocol's name: only BYTES is called otherwise."""
    name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    known = config_pb.DataType.keys()
    return config_pb.DataType.Value(name) if name in known else config_pb.TYPE_INVALID


def statistics(model: str, tally: Tally, *, age_s: float, now_ms: int) -> pb.ModelStatistics:
    """Return Triton's counters of a model.

    Input and output conversion happen inside the worker's batch and are part of compute_infer;
    their own counters stay empty rather than wrong.

    Args:
        model: Its name.
        tally: Its account.
        age_s: Time since the newest answer, s.
        now_ms: Wall-clock time since the epoch, ms.
    """
    answered = tally.success.count
    return pb.ModelStatistics(
        name=model,
        version=VERSION,
        last_inference=now_ms - int(age_s * 1e3) if answered else 0,
        inference_count=answered,
        execution_count=tally.executions,
        inference_stats=pb.InferStatistics(
            success=_duration(tally.success),
            fail=_duration(tally.fail),
            queue=_duration(tally.queue),
            compute_infer=_duration(tally.compute),
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=size, compute_infer=_per_batch(size, span))
            for size, span in sorted(tally.batches.items())
        ],
    )


def _duration(span: Span) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=span.count, ns=int(span.total_s * 1e9))


def _per_batch(size: int, span: Span) -> pb.StatisticDuration:
    """Turn requests with their batch's time into batches: `size` requests share one."""
    return pb.StatisticDuration(
        count=max(round(span.count / size), 1), ns=int(span.total_s / size * 1e9)
    )
