"""Print every plan as it comes into force, and go on when the planner restarts.

Needs the wheel cinquefoil-protos (docs/install.md), nothing else. Argument: the planner's address.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import grpc

from cinquefoil.planner.v1.plan_pb2 import Plan
from cinquefoil.planner.v1.planner_pb2 import WatchRequest
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub

AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


async def plans(address: str) -> AsyncIterator[Plan]:
    """Yield the newest plan, then every later one; a planner that is away is waited for."""
    newest: int | None = None
    async with grpc.aio.insecure_channel(address) as channel:
        planner = PlannerServiceStub(channel)
        while True:
            try:
                # The stream begins with all plans after this version: none is missed.
                request = WatchRequest(after_version=newest)
                async for update in planner.Watch(request, wait_for_ready=True):
                    if update.plan.version > (newest or 0):
                        newest = update.plan.version
                        yield update.plan
            except grpc.aio.AioRpcError as error:
                if error.code() not in AWAY:
                    raise
            await asyncio.sleep(1)


async def main(address: str) -> None:
    """Print plans until ctrl-c."""
    async for plan in plans(address):
        print(f"plan {plan.version} ({plan.strategy}): {plan.reason}", flush=True)
        for segment in plan.segments:
            spec = segment.spec
            print(f"  {segment.share:6.1%} {spec.variant} on {spec.placement.profile}", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8462"))
