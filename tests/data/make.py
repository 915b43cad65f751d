"""Writes the made-up data beside it: `python tests/data/make.py`.

Files of the formats that published data has, with numbers of our own, so that a clone tests every
strategy and reader from file to plan. No number here is measured or copied.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent

SLICES_GPCS = (1, 2, 3, 4, 7)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
PROCESSES = (1, 2, 3)
NETWORKS = {  # launch, ms; work of an item on one GPC, ms; memory of an item, GiB
    "amber": (2.0, 3.1, 0.10),
    "birch": (3.5, 7.9, 0.22),
    "cedar": (1.2, 1.3, 0.05),
    "dogwood": (5.0, 13.7, 0.45),
    "elder": (2.6, 5.2, 0.30),
}
SCENARIOS = (  # requests/s; None: the network is not served
    (390.0, 140.0, 900.0, None, 155.0),
    (950.0, 395.0, 2700.0, 160.0, None),
    (2800.0, 1010.0, 6100.0, 540.0, 1450.0),
)
LATENCIES_MS = (
    (120.0, 260.0, 60.0, None, 180.0),
    (120.0, 260.0, 60.0, 420.0, None),
    (90.0, 220.0, 45.0, 360.0, 150.0),
)

PROMPTS = {  # tokens that one would expect of an answer
    12: (
        "Is 91 a prime number? Answer yes or no.",
        "What is the capital of Portugal?",
        "Translate 'good evening' into Spanish.",
        "Give a one-word synonym for 'rapid'.",
        "How many minutes are there in a week? Only the number, please.",
        "Which planet is the largest?",
        "Correct the spelling: 'definately'.",
        "Complete the sequence: 2, 4, 8, 16,",
    ),
    120: (
        "Explain in two sentences why the sky is blue.",
        "List five vegetables that grow in winter.",
        "Summarise what a heat pump does for somebody who has never seen one.",
        "What is the difference between a virus and a bacterium?",
        "Suggest three names for a bakery and say why.",
        "Write a haiku about a railway station.",
    ),
    600: (
        "Write a detailed essay about the causes of the First World War.",
        "Explain step by step how to build a wooden bookshelf, with tools and materials.",
        (
            "Write a short story about a lighthouse keeper "  # words: ok
            "who finds a letter in a bottle."
        ),
        "Plan a ten-day trip through Japan with activities, food and costs for every day.",
        "Write a Python program with tests that implements a least-recently-used cache.",
        "Describe in depth how photosynthesis works, with all of its stages.",
        "Draft a complete business plan for a small coffee roastery.",
        "Compare the economic systems of four countries and discuss their strengths.",
    ),
}


def profile(launch_ms: float, work_ms: float, item_gib: float) -> list[tuple[object, ...]]:
    """Return a network's table: rows of ParvaGPU's profiler, zeros where memory does not do."""
    rows: list[tuple[object, ...]] = []
    for gpcs in SLICES_GPCS:
        for batch_size in BATCH_SIZES:
            for processes in PROCESSES:
                alone_ms = launch_ms + batch_size * work_ms / gpcs**0.9
                busy = min(1.0, 0.45 + 0.12 * batch_size / gpcs)
                latency_ms = alone_ms * max(1.0, processes * busy)
                fits = processes * (1.0 + batch_size * item_gib) <= 10 * min(gpcs, 8)
                rps = round(1000 * batch_size / latency_ms, 3) if fits else 0
                rows.append(
                    (gpcs, batch_size, processes, rps, round(latency_ms / 1000, 3) if fits else 0)
                )
    return rows


def requests_by_minute(days: int) -> list[tuple[object, ...]]:
    """Return a day's wave with noise that lasts some minutes; some minutes are missing."""
    rng = np.random.default_rng(41)
    rows: list[tuple[object, ...]] = []
    drift = 0.0
    for minute in range(days * 1440):
        drift = 0.8 * drift + rng.normal(0.0, 0.03)
        wave = 1.0 + 0.6 * np.sin(2 * np.pi * (minute / 1440 - 0.3))
        mean_rps = 60.0 * wave * float(np.exp(drift))
        most_rps = float(rng.poisson(mean_rps, 60).max())
        missing = minute % 977 == 976
        rows.append(
            (
                minute // 1440,
                minute % 1440,
                0 if missing else round(mean_rps, 3),
                0 if missing else int(most_rps),
            )
        )
    return rows


def carbon_by_hour(days: int) -> list[tuple[object, ...]]:
    """Return a grid with sun at noon and weather that lasts for days."""
    rng = np.random.default_rng(43)
    start, weather = datetime(2022, 4, 1, tzinfo=UTC), 0.0
    rows: list[tuple[object, ...]] = []
    for hour in range(days * 24):
        weather = 0.97 * weather + rng.normal(0.0, 9.0)
        sun = max(0.0, float(np.sin(np.pi * (hour % 24 - 6) / 12)))
        when = (start + timedelta(hours=hour)).isoformat().replace("+00:00", "Z")
        rows.append((when, round(max(20.0, 310.0 - 140.0 * sun + weather), 2)))
    return rows


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        if header:
            out.writerow(header)
        out.writerows(rows)


def main() -> None:
    """Write every file."""
    columns = ("Mig instance", "Batch size", "Workload Number", "Throughput", "Latency")
    for name, numbers in NETWORKS.items():
        write(HERE / f"parvagpu/prof_data/{name}.csv", columns, profile(*numbers))
    for name, table in (("req_rate", SCENARIOS), ("latency", LATENCIES_MS)):
        rows = [["N/A" if cell is None else cell for cell in row] for row in table]
        write(HERE / f"parvagpu/SLO/SLO_{name}.csv", (), rows)
    with (HERE / "prompts.jsonl").open("w") as file:
        for tokens, prompts in PROMPTS.items():
            for prompt in prompts:
                row = {"prompt": prompt, "model": "made-up", "output_tokens": tokens}
                file.write(json.dumps(row) + "\n")
    minutes = ("day", "minute_of_day", "mean_rps", "max_rps")
    write(HERE / "requests_by_minute.csv", minutes, requests_by_minute(2))
    hours = ("timestamp", "carbon_intensity_gco2_per_kwh")
    write(HERE / "carbon_by_hour.csv", hours, carbon_by_hour(14))


if __name__ == "__main__":
    main()
