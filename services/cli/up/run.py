"""`cinquefoil up`: starts a suite, prints its addresses and first commands, and stays."""

import asyncio
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from inference import grpc_service_pb2 as oip
from services.cli.client import connected
from services.cli.console.output import condition_line, condition_lines, table
from services.cli.reasons import say_holds
from services.cli.up.waiting import until_ready
from services.kit import proxies
from services.kit.conditions import control_off
from services.kit.config import Deployment
from services.kit.config.loader import DEFAULT_FILE, load
from services.kit.errors import ServiceError
from services.kit.net import split_address
from services.local.demo import demo_models
from services.local.endpoints import endpoints
from services.local.up.ports import refuse_taken
from services.local.up.process import State
from services.local.up.running import reloading
from services.local.up.suite import Suite

_REFRESH_S = 0.5


async def up(config: Path, logs: Path) -> None:
    """Run the deployment until cancelled.

    Raises:
        ConfigError: The file is wrong.
        ServiceError: An address is taken, or a service could not be started; the message quotes its
            log.
    """
    console = Console()
    deployment = load(config)
    refuse_taken(deployment)
    await asyncio.to_thread(demo_models.train_missing, deployment, console.print)
    suite = Suite.of(config, logs, with_console=True)
    console.print(f"Starting {', '.join(suite.members)}; logs in {logs}/", highlight=False)
    for name, node in deployment.nodes.items():
        if not node.controlled:  # known before anything has started
            console.print(condition_line(control_off(name)), soft_wrap=True)
    end = cast(asyncio.Task[None], asyncio.current_task()).cancel

    def reload() -> None:
        console.print("Reloading the deployment file; the services' logs say what changed.")
        suite.reload()

    try:
        with reloading(reload, end, logs):
            async with suite:
                await _serve(console, config, deployment, suite)
    except asyncio.CancelledError:
        # The border: cancelled is how a person or an init system ends this command.
        console.print("Stopped; no process is left.")


async def _serve(console: Console, config: Path, deployment: Deployment, suite: Suite) -> None:
    """Print the suite's addresses once it serves, and stay."""
    described = await _until_ready(console, deployment)
    console.print(endpoint_table(deployment))
    if deployment.console.listen:
        file = deployment.console.token_file
        login = f"; log in with a token of {file}" if file else ""
        console.print(f"\nIn a browser: http://{deployment.console.listen}/{login}", soft_wrap=True)
    console.print(Text(hints(config, deployment, described)), soft_wrap=True)
    await _stay(console, suite)


async def _until_ready(
    console: Console, deployment: Deployment
) -> oip.ModelMetadataResponse | None:
    """Wait for the models, showing the progress; print the conditions of models not served.

    Returns:
        Metadata of the first model; None: none is known.
    """
    described = None
    with console.status("Waiting for the first plan") as line:
        async with connected(deployment) as clients:
            left = await until_ready(clients, lambda why: line.update(Text(f"Waiting: {why}")))
            request = oip.ModelMetadataRequest(name=next(iter(deployment.models)))
            with suppress(ServiceError):
                described = await clients.inference.ModelMetadata(request)
            if not left:
                await say_holds(clients)
    if left:
        console.print(Text("Not every model is served:", style="bold"))
        for each in condition_lines(left):
            console.print(each, soft_wrap=True)
    return described


async def _stay(console: Console, suite: Suite) -> None:
    if not console.is_terminal:
        while True:
            await suite.watch(_REFRESH_S)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(processes(suite), refresh=True)
            await suite.watch(_REFRESH_S)


_STYLES = {State.SERVING: "green", State.STARTING: "yellow", State.RESTARTING: "red"}

ARRAYS = """\
import numpy as np, tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype
inputs = [triton.InferInput(name, shape, kind) for name, shape, kind in [{inputs}]]
for each in inputs:
    each.set_data_from_numpy(np.zeros(each.shape(), triton_to_np_dtype(each.datatype())))
print(triton.InferenceServerClient("{router}").infer("{model}", inputs).as_numpy("{output}"))
"""
TEXT = """\
import numpy as np, tritonclient.grpc as triton
text = triton.InferInput("text_input", [1], "BYTES")
text.set_data_from_numpy(np.array(["Why is the sky blue?"], dtype=object))
print(triton.InferenceServerClient("{router}").infer("{model}", [text]).as_numpy("text_output"))
"""
_FREE_SIZE: Final = 1
"""Size in the client's example where a model leaves it free."""


def endpoint_table(deployment: Deployment) -> RenderableType:
    """Return a table of the services' addresses."""
    rows = (
        (
            each.name,
            each.endpoint.dial,
            f"http://{at}" if (at := getattr(each.endpoint, "http_listen", "")) else "",
            f"http://{at}/metrics" if (at := each.endpoint.metrics) else "off",
        )
        for each in endpoints(deployment)
    )
    return table("Serving", "service", "gRPC", "HTTP", "metrics", rows=rows)


def hints(config: Path, deployment: Deployment, described: oip.ModelMetadataResponse | None) -> str:
    """Return next steps: some lines of Python, to be printed as they are, and commands.

    Args:
        config: Deployment file, as it was given.
        deployment: The deployment that serves.
        described: Metadata of its first model; None: no worker has reported any.
    """
    name, model = next(iter(deployment.models.items()))
    kinds = {each.runtime.kind for each in model.variants.values()}
    generates = bool(kinds & {"generative", "openai"})
    command = f"cinquefoil infer {name}"
    if generates:
        command += ' --prompt "Why is the sky blue?"'
    elif name != demo_models.MODEL:
        command += " --input FILE.npz"
    given = "" if config == DEFAULT_FILE else f" --config {shlex.quote(str(config))}"
    follow = f"{command}{given}; cinquefoil status --watch{given}; ctrl-c stops everything."
    if generates:
        client = TEXT.format(router=deployment.router.dial, model=name)
    elif described is not None and described.inputs and described.outputs:
        client = _client(deployment.router.dial, described)
    else:
        return f"\nTry: {follow}"
    direct = ""
    host = split_address(deployment.router.dial)[0]
    if variable := proxies.grpc_variable(host):
        direct = f"\nIt would call the proxy of {variable}: export no_grpc_proxy={host}\n"
    return f"\nTry, after pip install 'tritonclient[grpc]':\n\n{client}{direct}\nor: {follow}"


def _client(router: str, described: oip.ModelMetadataResponse) -> str:
    """Return a program that sends zeros of the types and sizes that a model takes."""
    inputs = ", ".join(
        f'("{each.name}", {[_FREE_SIZE if size < 0 else size for size in each.shape]}, '
        f'"{each.datatype}")'
        for each in described.inputs
    )
    output = described.outputs[0].name
    return ARRAYS.format(router=router, model=described.name, inputs=inputs, output=output)


def processes(suite: Suite) -> RenderableType:
    """Return one line per process."""
    rows = table("", "process", "state", ">pid", ">restarts")
    for name, member in suite.members.items():
        state = Text(member.state, style=_STYLES.get(member.state, ""))
        rows.add_row(name, state, str(member.pid or ""), str(member.restarts))
    return rows
