"""`cinquefoil predictor ...`: how long answers are going to be."""

from __future__ import annotations

import typer

from services.cli.commands import predictor_service, predictor_training

app = typer.Typer(
    name="predictor", help="Foretells the length of generated answers.", no_args_is_help=True
)
app.command()(predictor_service.serve)
app.command()(predictor_service.status)
app.command()(predictor_service.forget)
app.command()(predictor_training.train)
app.command()(predictor_training.evaluate)
