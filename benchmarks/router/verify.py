"""A real client that reads the answers: what no load generator does."""

import asyncio

import grpc

from benchmarks.router import messages
from benchmarks.router.generators import Wrong
from benchmarks.router.processes import Server

TOGETHER = 64
_PATIENCE_S = 60.0


async def verify(server: Server, size: str, *, receipt: bool) -> int:
    """Send many requests at once, and check every answer.

    Args:
        server: The server.
        size: Of messages.SHAPES.
        receipt: Answers must say what they cost, in parameters and trailing metadata.

    Returns:
        Bytes of the shortest answer.

    Raises:
        Wrong: An answer is not what it should be.
    """
    body = messages.request(size)
    async with messages.channel(server.port, server.security) as channel:
        calls = [messages.infer(channel)(body, timeout=_PATIENCE_S) for _ in range(TOGETHER)]
        try:
            answers = await asyncio.gather(*calls)
        except grpc.aio.AioRpcError as error:
            raise Wrong(f"answered {error.code().name}: {error.details()}") from error
        for call, answer in zip(calls, answers, strict=True):
            problem = messages.wrong(answer, receipt=receipt)
            if receipt and not problem:
                trailers = {key for key, _ in await call.trailing_metadata() or ()}
                problem = "" if "cinquefoil-energy-j" in trailers else "no energy in the trailers"
            if problem:
                raise Wrong(problem)
    return min(map(len, answers))
