"""Metadata of a model as Triton's clients read it."""

import pytest

from inference import grpc_service_pb2 as pb
from inference import model_config_pb2
from services.router.core.dispatch.dispatcher import Dispatcher
from services.router.core.model import Limits, ModelRoutes
from services.router.core.worker_port import Hello
from services.router.frontend.messages import config, metadata

TENSOR = pb.ModelMetadataResponse.TensorMetadata


def hello(*shapes: list[int], datatype: str = "FP32") -> Hello:
    inputs = [TENSOR(name=f"x{n}", datatype=datatype, shape=s) for n, s in enumerate(shapes)]
    outputs = [TENSOR(name="y", datatype="INT64", shape=shapes[0][:1])]
    return Hello(8, pb.ModelMetadataResponse(inputs=inputs, outputs=outputs).SerializeToString())


def dispatcher() -> Dispatcher:
    return Dispatcher(ModelRoutes("m", 0.1, 95, "shares"), Limits())


def test_a_model_whose_first_dimension_is_free_batches() -> None:
    found = config(dispatcher(), hello([-1, 3, 224, 224]))

    assert found.max_batch_size == 8
    assert found.HasField("dynamic_batching")
    assert list(found.input[0].dims) == [3, 224, 224]
    assert list(found.output[0].dims) == []


def test_a_model_with_a_fixed_dimension_does_not_batch_and_keeps_its_shape() -> None:
    found = config(dispatcher(), hello([-1, 4], [2, 4]))

    assert found.max_batch_size == 0
    assert not found.HasField("dynamic_batching")
    assert [list(tensor.dims) for tensor in found.input] == [[-1, 4], [2, 4]]


@pytest.mark.parametrize(
    ("datatype", "wanted"),
    [("BYTES", "TYPE_STRING"), ("BF16", "TYPE_BF16"), ("NEW", "TYPE_INVALID")],
)
def test_datatypes_have_tritons_names(datatype: str, wanted: str) -> None:
    found = config(dispatcher(), hello([-1, 4], datatype=datatype))

    assert model_config_pb2.DataType.Name(found.input[0].data_type) == wanted


def test_metadata_is_the_workers_with_the_models_name() -> None:
    found = metadata("m", hello([-1, 4]))

    assert (found.name, list(found.versions)) == ("m", ["1"])
