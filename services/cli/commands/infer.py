"""`cinquefoil infer`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json


async def infer(  # noqa: PLR0913 - a command's options are its arguments
    model: Annotated[str, typer.Argument(help="A model of the deployment file.")],
    *,
    config: Config = DEPLOYMENT,
    image: Annotated[
        int | None, typer.Option(min=0, max=718, help="Held-out handwritten digit to send.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--input", help="Array to send instead, one item or a batch.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt for a language model; its text is streamed.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of generated tokens.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0: the likeliest text.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; equal seeds give equal text.")
    ] = None,
    stop: Annotated[str | None, typer.Option(help="Text that ends the generation.")] = None,
    json: Json = False,
) -> None:
    """Send one request and print the answer, the variant that gave it, and what it cost.

    Without --image, --input or --prompt, the first held-out digit is sent.
    """
    given = [value for value in (image, source, prompt) if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("give one of --image, --input and --prompt")
    if prompt is not None:
        from services.cli.infer.generate import Sampling, generate

        sampling = Sampling(max_tokens, temperature, seed, stop)
        await generate(config, model, prompt, sampling, as_json=json)
        return
    from services.cli.infer.send import send

    await send(config, model, image=image or 0, source=source, as_json=json)
