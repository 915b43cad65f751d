"""The predictor service over the wire, as its composition root wires it."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from cinquefoil.predictor.v1 import predictor_pb2 as pb
from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceStub
from services.kit.config import GenerativeRuntime
from services.kit.config.loader import ConfigError
from services.kit.net import free_port
from services.kit.rpc import dial
from services.predictor.app import answer_limits, run
from services.predictor.core.estimate import AnswerLimits
from tests.support.predictor.predictor_service import (
    CAKE,
    LIKE_CAKE,
    MODEL,
    SQL,
    channel,
    deployed,
    observe,
    predict,
    predictor,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cinquefoil.predictor.v1.predictor_pb2_grpc import PredictorServiceAsyncStub
    from tests.conftest import Deploy

CACHED = (pb.SOURCE_EXACT, pb.SOURCE_SEMANTIC)
HOSTILE = {
    "empty": b"",
    "binary": bytes(range(256)) * 100,
    "invalid-utf8": b"\xff\xfe\xc0\x80" * 1000,
    "combining": "\u0301".encode() * 10_000,
    "nul": b"\0" * 5000,
    "one-mib": b"word " * (2**20 // 5),
    "above-the-bound": b"x" * (2**20 + 1),
}


@pytest.fixture
async def stub(deployment: Deploy, tmp_path: Path) -> AsyncIterator[PredictorServiceAsyncStub]:
    async with predictor(deployed(deployment, tmp_path)) as found:
        yield found


async def test_a_length_observed_is_predicted_for_the_same_prompt_and_for_a_like_one(
    stub: PredictorServiceAsyncStub,
) -> None:
    (before,) = await predict(stub, CAKE)
    assert before.source not in CACHED
    assert await observe(stub, CAKE, 321) == 1

    same, like, other = await predict(stub, CAKE, LIKE_CAKE, SQL)

    assert (same.source, same.expected_tokens) == (pb.SOURCE_EXACT, 321)
    assert (like.source, like.expected_tokens) == (pb.SOURCE_SEMANTIC, 321)
    assert other.source not in CACHED
    for each in (before, same, like, other):
        assert 0 <= each.low_tokens <= each.expected_tokens <= each.high_tokens
        assert 0 <= each.rank <= 1


async def test_the_key_of_a_response_stands_for_its_prompt(
    stub: PredictorServiceAsyncStub,
) -> None:
    """The router need not keep prompts; the vector of the question is used again."""
    (predicted,) = await predict(stub, CAKE)
    observed = pb.Observation(model=MODEL, prompt_key=predicted.prompt_key, output_tokens=50)
    strange = pb.Observation(model=MODEL, prompt_key=b"never given", output_tokens=50)
    learned = await stub.Observe(pb.ObserveRequest(observations=[observed, strange]))

    assert learned.learned == 1
    (like,) = await predict(stub, LIKE_CAKE)
    assert (like.source, like.expected_tokens) == (pb.SOURCE_SEMANTIC, 50)


async def test_a_model_that_the_deployment_does_not_name_gets_the_prior_and_leaves_nothing(
    stub: PredictorServiceAsyncStub,
) -> None:
    (answer,) = await predict(stub, CAKE, model="stranger")

    assert (answer.source, answer.prompt_key) == (pb.SOURCE_PRIOR, b"")
    assert await observe(stub, CAKE, 5, model="stranger") == 0
    statistics = await stub.GetStatistics(pb.GetStatisticsRequest())
    assert [each.model for each in statistics.models] == [MODEL]


async def test_hostile_prompts_get_a_bounded_answer(stub: PredictorServiceAsyncStub) -> None:
    """One that is too large for the cache gets the prior; all others are learned like any."""
    first = dict(zip(HOSTILE, await predict(stub, *HOSTILE.values()), strict=True))
    learned = {name: await observe(stub, prompt, 10) for name, prompt in HOSTILE.items()}
    again = dict(zip(HOSTILE, await predict(stub, *HOSTILE.values()), strict=True))

    assert all(0 <= each.expected_tokens <= each.high_tokens for each in first.values())
    assert [name for name, count in learned.items() if not count] == ["above-the-bound"]
    sources = {name: each.source for name, each in again.items()}
    assert sources.pop("above-the-bound") == pb.SOURCE_PRIOR
    assert set(sources.values()) == {pb.SOURCE_EXACT}


async def test_a_request_without_a_model_ends_its_stream_after_the_others_are_answered(
    stub: PredictorServiceAsyncStub,
) -> None:
    requests = [pb.PredictRequest(id=1, model=MODEL), pb.PredictRequest(id=2)]
    call = stub.Predict(iter(requests))

    first = await call.read()
    assert isinstance(first, pb.PredictResponse)
    assert first.id == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_cannot_be_computed_in_time_is_answered_from_the_prior(
    deployment: Deploy, tmp_path: Path
) -> None:
    """With one thread and no room to wait, of many prompts at once most get the prior."""
    async with predictor(deployed(deployment, tmp_path, max_waiting=0)) as stub:
        prompts = [f"{SQL.decode()} Number {i}".encode() for i in range(200)]
        answers = await predict(stub, *prompts)

        late = [each for each in answers if each.source == pb.SOURCE_PRIOR]
        assert late
        assert all(each.prompt_key for each in late)  # its length can be learned nonetheless


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.ForgetRequest(), "everything"),
        (pb.ForgetRequest(unused_for=Duration(seconds=-1)), "unused_for"),
    ],
)
async def test_forgetting_nothing_in_particular_is_refused(
    stub: PredictorServiceAsyncStub, request_: pb.ForgetRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Forget(request_)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in str(caught.value.details())


async def test_a_batch_with_one_wrong_observation_counts_for_nothing(
    stub: PredictorServiceAsyncStub,
) -> None:
    good = pb.Observation(model=MODEL, prompt=CAKE, output_tokens=5)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Observe(pb.ObserveRequest(observations=[good, pb.Observation(model=MODEL)]))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "observations[1]" in str(caught.value.details())
    (answer,) = await predict(stub, CAKE)
    assert answer.source not in CACHED


async def test_a_length_beyond_the_models_context_is_refused(
    stub: PredictorServiceAsyncStub,
) -> None:
    """The refused length is not learned; without a known context, a million tokens may come."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await observe(stub, CAKE, 5, 1_000_001)

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "observations[1].output_tokens: at most 1000000" in str(caught.value.details())
    (answer,) = await predict(stub, CAKE)
    assert answer.source not in CACHED


def test_limits_are_those_of_the_runtime_that_allows_the_most(deployment: Deploy) -> None:
    """Of a model that not only language models in our workers serve, nothing is known."""
    model = deployment({}).models[MODEL]
    (variant,) = list(model.variants.values())[:1]
    assert answer_limits(model) == AnswerLimits()

    runtimes = [
        GenerativeRuntime(kind="generative", context_tokens=context, max_tokens=most)
        for context, most in ((2048, 256), (4096, 128))
    ]
    variants = {str(n): variant.model_copy(update={"runtime": r}) for n, r in enumerate(runtimes)}
    limits = answer_limits(model.model_copy(update={"variants": variants}))
    assert limits == AnswerLimits(4096, 256)
    assert [limits.of_request(each) for each in (0, 300, 9000)] == [256, 300, 4096]


async def test_what_was_forgotten_is_predicted_no_more_and_learned_no_more(
    stub: PredictorServiceAsyncStub,
) -> None:
    await observe(stub, CAKE, 100)
    (predicted,) = await predict(stub, SQL)

    answer = await stub.Forget(pb.ForgetRequest(model=MODEL))

    assert answer.forgotten == 2  # one observed, one predicted
    late = pb.Observation(model=MODEL, prompt_key=predicted.prompt_key, output_tokens=7)
    assert (await stub.Observe(pb.ObserveRequest(observations=[late]))).learned == 0
    assert all(each.source not in CACHED for each in await predict(stub, CAKE, LIKE_CAKE, SQL))


async def test_only_what_is_older_than_the_age_is_forgotten(
    stub: PredictorServiceAsyncStub,
) -> None:
    await observe(stub, CAKE, 100)

    week = await stub.Forget(pb.ForgetRequest(unused_for=Duration(seconds=7 * 86_400)))
    assert week.forgotten == 0
    moment = await stub.Forget(pb.ForgetRequest(unused_for=Duration(nanos=1)))
    assert moment.forgotten == 1


async def test_statistics_have_hits_and_how_often_the_class_was_right(
    stub: PredictorServiceAsyncStub,
) -> None:
    await observe(stub, CAKE, 100)
    for _ in range(3):
        await predict(stub, CAKE)
    await observe(stub, CAKE, 100)

    (model,) = (await stub.GetStatistics(pb.GetStatisticsRequest(model=MODEL))).models

    exact = next(each for each in model.sources if each.source == pb.SOURCE_EXACT)
    assert (exact.predictions, exact.judged, exact.right) == (3, 1, 1)
    assert exact.total_s > 0
    assert (model.observed, model.cache_entries) == (2, 1)
    assert model.cache_bytes > 0


async def test_a_client_that_vanishes_leaves_the_service_working(
    deployment: Deploy, tmp_path: Path
) -> None:
    async with channel(deployed(deployment, tmp_path)) as found:
        stub: PredictorServiceAsyncStub = PredictorServiceStub(found)
        call = stub.Predict(
            pb.PredictRequest(model=MODEL, prompt=SQL + b"%d" % i) for i in range(50)
        )
        await call.read()
        call.cancel()

        assert len(await predict(stub, CAKE)) == 1


async def test_a_deployment_without_a_predictor_says_so(deployment: Deploy) -> None:
    with pytest.raises(ConfigError, match="predictor"):
        await run(deployment({}), asyncio.Event())


async def test_a_restart_keeps_lengths_unless_nothing_is_to_persist(
    deployment: Deploy, tmp_path: Path
) -> None:
    kept = deployed(deployment, tmp_path)
    async with predictor(kept) as stub:
        await observe(stub, CAKE, 77)
    async with predictor(kept) as stub:
        same, like = await predict(stub, CAKE, LIKE_CAKE)
    assert (same.source, same.expected_tokens) == (pb.SOURCE_EXACT, 77)
    assert like.source == pb.SOURCE_SEMANTIC

    file = tmp_path / "elsewhere.sqlite3"
    fleeting = deployed(deployment, tmp_path, cache={"persist": False, "file": str(file)})
    async with predictor(fleeting) as stub:
        await observe(stub, CAKE, 77)
    async with predictor(fleeting) as stub:
        (gone,) = await predict(stub, CAKE)
    assert gone.source not in CACHED
    assert not file.exists()


async def test_after_a_kill_what_was_forgotten_stays_so_and_the_text_was_never_written(
    deployment: Deploy,
    tmp_path: Path,
) -> None:
    """A real process: learns, forgets, is killed with SIGKILL, and comes back."""
    file, port = tmp_path / "predictor.sqlite3", free_port()
    section = {
        "listen": f"127.0.0.1:{port}",
        "cache": {"file": str(file)},
    }
    deployment({"predictor": section})
    config, logs = tmp_path / "cinquefoil.yaml", tmp_path / "log"

    async def started() -> asyncio.subprocess.Process:
        with logs.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "services.cli", "predictor", "serve"),
                env={**os.environ, "CINQUEFOIL_CONFIG": str(config)},
                stderr=log,
            )

    async with dial(f"127.0.0.1:{port}") as found:
        stub: PredictorServiceAsyncStub = PredictorServiceStub(found)
        ready = pb.GetStatisticsRequest()
        process = await started()
        try:
            await stub.GetStatistics(ready, wait_for_ready=True)
            await observe(stub, CAKE, 10)
            await stub.Forget(pb.ForgetRequest(everything=True))
            await observe(stub, SQL, 20)
            await stub.Forget(pb.ForgetRequest(unused_for=Duration(seconds=3600)))  # saves
            process.send_signal(signal.SIGKILL)
            await process.wait()
            process = await started()
            await stub.GetStatistics(ready, wait_for_ready=True)
            cake, sql = await predict(stub, CAKE, SQL)
        finally:
            process.terminate()
            status = await process.wait()

    assert cake.source not in CACHED
    assert (sql.source, sql.expected_tokens) == (pb.SOURCE_EXACT, 20)
    assert status == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for written in (file, logs):
        assert b"chocolate" not in written.read_bytes()
        assert b"SQL query" not in written.read_bytes()


def test_the_section_is_optional(deployment: Deploy) -> None:
    assert deployment({}).predictor is None
