"""Behaviours of vLLM's server through a router: python -m benchmarks.api --router URL --direct URL.

Each is requested of the server itself and of the router before it: the router has to have all
that the server has. How to start both: docs/generative.md, "Tried with vLLM".
"""

import argparse
import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout

from benchmarks.api.behaviours import BEHAVIOURS, Behaviour, Found
from benchmarks.api.vllm_tests import VLLM_TESTS
from benchmarks.harness import Row

_SECONDS = 120.0


async def found(session: ClientSession, url: str, model: str, wanted: Behaviour) -> Found:
    """Return what a server answers."""
    body = {"model": model, **wanted.body} if isinstance(wanted.body, Mapping) else wanted.body
    call = session.get(url) if body is None else session.post(url, json=body)
    async with call as answer:
        text = await answer.text()
    if answer.content_type == "text/event-stream":
        lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
        events = [json.loads(line) for line in lines if line != "[DONE]"]
        return Found(answer.status, events=events, done="[DONE]" in lines)
    with suppress(ValueError):
        return Found(answer.status, json.loads(text))
    return Found(answer.status)


async def has(session: ClientSession, url: str, model: str, wanted: Behaviour) -> bool:
    """Return whether a server has a behaviour; an answer of another form has it not."""
    answer = await found(session, url.removesuffix("/") + wanted.path, model, wanted)
    with suppress(KeyError, IndexError, TypeError, ValueError, AttributeError):
        return bool(wanted.holds(answer))
    return False


async def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("router", "direct"):
        parser.add_argument(f"--{name}", required=True, metavar="URL")
        parser.add_argument(f"--{name}-model", required=True, metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    rows: list[Row] = []
    async with ClientSession(timeout=ClientTimeout(total=_SECONDS)) as session:
        for each in (*BEHAVIOURS, *VLLM_TESTS):
            direct = await has(session, given.direct, given.direct_model, each)
            router = await has(session, given.router, given.router_model, each)
            rows.append({"path": each.path, "says": each.says, "direct": direct, "router": router})
            if router != direct or not router:
                print(f"direct {direct!s:5}  router {router!s:5}  {each.path} {each.says}")
    total = {way: sum(row[way] for row in rows) for way in ("direct", "router")}
    print(f"of {len(rows)}: direct {total['direct']}, router {total['router']}")
    if given.json:
        given.json.write_text(json.dumps({"of": len(rows), **total, "behaviours": rows}))


asyncio.run(main())
