"""CLOVER's evaluation (SC'23, section 5), every strategy on the same problem.

python -m benchmarks.clover [--json FILE] [--plots [DIR]] [--quick]
"""

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from rich.console import Console
from rich.progress import Progress

from benchmarks.clover import plots, report
from benchmarks.clover.jobs import Results, jobs, result
from benchmarks.harness import Report, document, main


def measure(*, quick: bool = False) -> Report:
    """Work off all jobs on all cores, and report."""
    todo = jobs(quick=quick)
    found: Results = {}
    console = Console(stderr=True)
    with (
        ProcessPoolExecutor(os.cpu_count()) as workers,
        Progress(console=console, transient=True) as progress,
    ):
        bar = progress.add_task("CLOVER", total=len(todo))
        futures = {workers.submit(result, job): job for job in todo}
        for future in as_completed(futures):
            found[futures[future]] = future.result()
            progress.advance(bar)
    results = {job: found[job] for job in todo}
    tables = report.tables(results)
    figures = report.headline(results) | document("clover", tables)
    return Report(tables, figures, partial(plots.draw, results))


if __name__ == "__main__":
    main("clover", measure, quick=partial(measure, quick=True))
