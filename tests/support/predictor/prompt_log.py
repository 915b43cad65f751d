"""A log in which a prompt's first word gives the length of its answer."""

import numpy as np

from services.predictor.training.core.rows import Row

LENGTHS_TOKENS = {"define": 20, "list": 80, "explain": 200, "write": 500}
TOPICS = ("tides", "bread", "queues", "moss", "glass", "sleep", "salt", "chess", "rivers", "kites")


def log(models: tuple[str, ...] = ("small", "large")) -> list[Row]:
    """Return answers of models; each later one answers at three times the length."""
    random = np.random.default_rng(0)
    rows = []
    for factor, model in enumerate(models):
        for word, tokens in LENGTHS_TOKENS.items():
            for number in range(40):
                topic = f"{TOPICS[number % 10]} and {TOPICS[(number // 10 + number) % 10]}"
                drawn = int(tokens * 3**factor * random.uniform(0.8, 1.2))
                rows.append(Row(model, f"{word} {topic} for a class of {number}", drawn))
    return rows
