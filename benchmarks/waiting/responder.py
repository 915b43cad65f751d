"""A router and workers that answer at once: the far end of `benchmarks.waiting.lines`.

python -m benchmarks.waiting.responder PORT
"""

from __future__ import annotations

import sys

from aiohttp import web

from services.router.edge.calls import LINES

_ANSWER = (
    b'{"model_name":"digits","model_version":"1","outputs":[{"name":"y","datatype":"FP32",'
    b'"shape":[1],"data":[%b]}],"parameters":{"energy_j":3.6,"carbon_gco2e":0.0004,'
    b'"energy_marginal_j":1.2}}'
)


async def _lines(request: web.Request) -> web.Response:
    """Answer each line with the first number of its row."""
    found = []
    for number, line in enumerate((await request.read()).split(b"\n")):
        body = _ANSWER % line.rpartition(b"[")[2].partition(b",")[0]
        found.append(b'{"line":%d,"status":200,"bytes":%d}\n%b\n' % (number, len(body), body))
    return web.Response(body=b"".join(found), content_type="application/jsonl")


def main() -> None:
    """Serve until killed."""
    app = web.Application(client_max_size=2**26)
    app.add_routes([web.post(LINES, _lines)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
