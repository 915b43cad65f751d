"""What `cinquefoil up` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from services.cli.up.process import State
from services.cli.up.suite import Suite
from services.kit.deployment import Deployment, Endpoint

_STYLES = {State.SERVING: "green", State.STARTING: "yellow", State.RESTARTING: "red"}

CLIENT = """\
import numpy as np, tritonclient.grpc as triton
image = triton.InferInput("image", [1, 64], "FP32").set_data_from_numpy(np.zeros((1, 64), "f4"))
print(triton.InferenceServerClient("{router}").infer("{model}", [image]).as_numpy("label"))
"""


def welcome(deployment: Deployment) -> RenderableType:
    """Return the endpoints, and three lines of Python to try."""
    table = Table("service", "gRPC", "metrics", title="Serving", title_justify="left")
    for name, endpoint in _endpoints(deployment):
        metrics = f"http://{endpoint.metrics}/metrics" if endpoint.metrics else "-"
        table.add_row(name, endpoint.dial, metrics)
    model = next(iter(deployment.models))
    client = CLIENT.format(router=deployment.router.dial, model=model)
    return Group(
        table,
        Text("Try (pip install 'tritonclient[grpc]'):"),
        Syntax(client, "python", background_color="default"),
        Text(f"or: cinquefoil infer {model}; cinquefoil status --watch; ctrl-c stops everything."),
    )


def processes(suite: Suite) -> RenderableType:
    """Return one line per process."""
    table = Table("process", "state", box=None)
    table.add_column("pid", justify="right")
    table.add_column("restarts", justify="right")
    for name, member in suite.members.items():
        state = Text(member.state, style=_STYLES.get(member.state, ""))
        table.add_row(name, state, str(member.pid or "-"), str(member.restarts))
    return table


def _endpoints(deployment: Deployment) -> Iterator[tuple[str, Endpoint]]:
    yield "carbon", deployment.carbon
    yield "planner", deployment.planner
    for name, node in deployment.nodes.items():
        yield f"gpuagent-{name}", node
    yield "router", deployment.router
