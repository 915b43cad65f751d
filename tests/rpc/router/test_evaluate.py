"""`cinquefoil eval` through a real router: what a model answers is what is counted."""

from cinquefoil.gpuagent.v1 import worker_pb2
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.cli.evaluate.items import items
from services.cli.evaluate.run import Result, count_right
from tests.rpc.router.test_openai import language, text
from tests.support.router.router_service import running


def first_choice(work: worker_pb2.Work) -> worker_pb2.Result:
    """Answer with the first choice of the last question."""
    request = pb.ModelInferRequest.FromString(work.request)
    said = request.raw_input_contents[0][4:].decode()
    assert request.parameters["temperature"].double_param == 0.0
    assert request.parameters["chat"].WhichOneof("parameter_choice") == "bool_param"
    return text(work, " " + said.rpartition("Choices: ")[2].partition(",")[0], "stop")


async def test_what_is_right_and_what_names_no_choice_is_counted() -> None:
    """One that always names the first is right where the first is; one that says less, never."""
    shown, questions = (found := items(44))[:4], found[4:]
    counted = []
    async with running(max_queue=100) as world:
        worker = await language(world, first_choice)
        stub = GRPCInferenceServiceStub(world.channel)
        first = await count_right(stub, "digits", "v", shown, questions, lambda: counted.append(1))
        worker.answer = lambda work: text(work, "", "length")
        silent = await count_right(stub, "digits", "v", shown, questions)

    assert first == Result("v", 40, sum(not each.right for each in questions), 0, 80)
    assert len(counted) == 40
    assert silent == Result("v", 40, 0, 40, 80)
