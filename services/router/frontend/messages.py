"""Messages of the Open Inference Protocol about models: metadata, config, statistics."""

from inference import grpc_service_pb2 as pb
from inference import model_config_pb2 as config_pb
from services.router.core.accounting.counters import Durations
from services.router.core.accounting.model_stats import ModelStats
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model_registry import VERSION
from services.router.core.worker_port import Hello

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "parameters",
    "statistics",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "cinquefoil_receipts",
)

_MAX_MESSAGE_BYTES = 2**31 - 1  # gRPC's


def transport_limit(max_request_bytes: int) -> int:
    """Return the size from which gRPC itself refuses a request, without naming the setting.

    Up to here the router reads requests that are too large, to name it.
    """
    return min(2 * max_request_bytes + 2**20, _MAX_MESSAGE_BYTES)


def metadata(model: str, hello: Hello) -> pb.ModelMetadataResponse:
    """Return a model's metadata as its workers report it.

    Args:
        model: The model.
        hello: The newest hello of its workers.
    """
    found = pb.ModelMetadataResponse.FromString(hello.metadata)
    found.name = model
    if not found.versions:
        found.versions.append(VERSION)
    return found


def config(dispatcher: Dispatcher, hello: Hello) -> config_pb.ModelConfig:
    """Return Triton's view of a model; arguments as of `metadata`.

    A model batches where the first dimension of every tensor is free, and its workers do not say
    that it takes one request at a time; Triton's config leaves that dimension out. Its instances
    may batch differently: the largest batch counts.
    """
    routes = dispatcher.routes
    known = metadata(routes.model, hello)
    tensors = (*known.inputs, *known.outputs)
    free = all(tensor.shape and tensor.shape[0] == -1 for tensor in tensors)
    batches = free and hello.max_batch != 1
    sizes = (hello.credits, *(state.credits for state in dispatcher.states.values()))
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
    found.model_transaction_policy.decoupled = hello.decoupled
    return found


def _type(datatype: str) -> config_pb.DataType.ValueType:
    """Return Triton's enum of the protocol's name: only BYTES is called otherwise."""
    name = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    known = config_pb.DataType.keys()
    return config_pb.DataType.Value(name) if name in known else config_pb.TYPE_INVALID


def statistics(model: str, stats: ModelStats, *, age_s: float, now_ms: int) -> pb.ModelStatistics:
    """Return Triton's counters of a model.

    Input and output conversion happen inside the worker's batch and are part of compute_infer;
    their own counters stay empty rather than wrong. The cache is the predictor's: of lengths, not
    of answers.

    Args:
        model: Name of the model.
        stats: Statistics of the model.
        age_s: Time since the newest answer, s.
        now_ms: Wall-clock time since the epoch, ms.
    """
    total = stats.total
    answered = total.answered
    return pb.ModelStatistics(
        name=model,
        version=VERSION,
        last_inference=now_ms - int(age_s * 1e3) if answered else 0,
        inference_count=stats.items,
        execution_count=stats.executions,
        inference_stats=pb.InferStatistics(
            success=_duration(Durations(answered, total.latency.total_s)),
            fail=_duration(stats.fail),
            queue=_duration(Durations(answered, total.queue.total_s)),
            compute_infer=_duration(Durations(answered, total.compute.total_s)),
            cache_hit=_duration(stats.cache_hits),
            cache_miss=_duration(stats.cache_misses),
        ),
        batch_stats=[
            pb.InferBatchStatistics(batch_size=size, compute_infer=_per_batch(size, items))
            for size, items in sorted(stats.batches.items())
        ],
        response_stats={
            str(index): pb.InferResponseStatistics(
                compute_infer=_duration(position.success),
                success=_duration(position.success),
                empty_response=_duration(position.empty),
                fail=_duration(position.fail),
            )
            for index, position in sorted(stats.responses.items())
        },
    )


def _duration(durations: Durations) -> pb.StatisticDuration:
    return pb.StatisticDuration(count=durations.count, ns=int(durations.total_s * 1e9))


def _per_batch(size: int, items: Durations) -> pb.StatisticDuration:
    """Turn items with their batch's time into batches: `size` items share one."""
    return pb.StatisticDuration(
        count=max(round(items.count / size), 1), ns=int(items.total_s / size * 1e9)
    )
