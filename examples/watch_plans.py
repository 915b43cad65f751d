"""Follow the planner: print every plan as it comes into force."""

import asyncio
import sys

import grpc

from cinquefoil.planner.v1.planner_pb2 import WatchRequest
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub


async def main(address: str) -> None:
    """Print the newest plan, then each later one, until the planner goes."""
    seen = 0
    async with grpc.aio.insecure_channel(address) as channel:
        async for update in PlannerServiceStub(channel).Watch(WatchRequest()):
            if update.plan.version > seen:
                seen = update.plan.version
                print(f"plan {seen} ({update.plan.strategy}): {update.plan.reason}", flush=True)
                for segment in update.plan.segments:
                    spec = segment.spec
                    print(f"  {segment.share:6.1%} {spec.variant} on {spec.placement.profile}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8462"))
