"""Training finds what a log shows, repeatably; the file says what training said."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.generative.shipped import SOURCES
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.predictor.adapters.proxy_model import DEFAULT, ProxyModel
from services.predictor.core.estimate import CLASS_RANKS
from services.predictor.core.length_classes import LengthClasses
from services.predictor.runtime.length_models import LengthModels
from services.predictor.training.core.fit import (
    Embed,
    Trained,
    edges_tokens,
    fit,
    known_lengths,
    true_classes,
)
from services.predictor.training.core.metrics import confusion, measure, pair_order
from services.predictor.training.core.rows import Row, by_model, read, split
from services.predictor.training.export import to_onnx
from tests.support.paths import MADE_UP, PUBLISHED
from tests.support.predictor.prompt_log import log

PROMPTS = PUBLISHED / "prompts"
ALPACA = PUBLISHED / "prompts/alpaca_eval.jsonl"
needs_shipped = pytest.mark.skipif(not PROMPTS.is_dir(), reason="no prompts beside the clone")
needs_alpaca = pytest.mark.skipif(not ALPACA.is_file(), reason="no prompts beside the clone")


@pytest.fixture(scope="module")
def file(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predictor") / "predictor.onnx"
    path.write_bytes(to_onnx(trained))
    return path


def test_what_a_log_shows_is_learned_for_prompts_never_seen(embed: Embed) -> None:
    rows = log()
    training, testing = split(rows, 0.25, seed=1)
    trained = fit(training, embed)
    true = true_classes(testing, trained.body.edges_tokens)
    called = trained.probabilities(testing, embed).argmax(axis=1)
    assert np.mean(np.abs(called - true) <= 1) > 0.95
    assert np.mean(called == true) > 0.6  # the commonest class: a quarter


def test_the_file_says_what_training_said(trained: Trained, file: Path, embed: Embed) -> None:
    """The network in ONNX Runtime and in numpy agree, for every served model."""
    proxy, rows = ProxyModel(file), log()[::7]
    edges = trained.body.edges_tokens
    found = [proxy.probabilities(r.prompt, embed(r.prompt), edges[r.model]) for r in rows]
    assert np.array(found) == pytest.approx(trained.probabilities(rows, embed), abs=2e-3)


def test_equal_logs_and_seeds_train_equal_files(trained: Trained, embed: Embed) -> None:
    assert to_onnx(fit(log(), embed)) == to_onnx(trained)


def test_edges_are_the_percentiles_whatever_the_order_of_the_log() -> None:
    """Logs are sorted by task, and longer than what is remembered of live answers."""
    long = [Row("m", "write", 300 + number % 99) for number in range(6000)]
    short = [Row("m", "define", 20 + number % 9) for number in range(8000)]
    classes = known_lengths(long + short)[1]["m"]
    true = np.quantile([row.tokens for row in long + short], CLASS_RANKS)
    assert classes.edges_tokens == pytest.approx(true.tolist(), rel=0.05)


@needs_shipped
def test_the_edges_that_ship_are_the_percentiles_of_what_it_was_trained_on() -> None:
    """Within 5 %, of every served model with enough answers for a hundredth of them."""
    known = ProxyModel().known
    rows = [row for name in SOURCES for row in read(PROMPTS / name)]
    for model, own in by_model(rows).items():
        true = np.quantile([row.tokens for row in own], CLASS_RANKS)
        found = LengthClasses.from_bytes(known.classes[model], known.prior).edges_tokens
        assert found == pytest.approx(true.tolist(), rel=0.05), model


def test_answers_that_a_log_marks_as_cut_off_are_no_lengths(embed: Embed, tmp_path: Path) -> None:
    """A limit of 250 tokens on half of the requests moves the edges by a tenth at most."""
    file, half = tmp_path / "log.jsonl", tmp_path / "half.jsonl"
    with file.open("w") as whole, half.open("w") as limited:
        for number, row in enumerate(log()):
            line = {"model": row.model, "prompt": row.prompt, "output_tokens": row.tokens}
            whole.write(json.dumps(line) + "\n")
            if number % 2 and row.tokens > 250:
                line |= {"output_tokens": 250, "finish_reason": "length"}
            limited.write(json.dumps(line) + "\n")
    edges, marked = edges_tokens(read(file)), edges_tokens(read(half))
    for model, expected in edges.items():
        assert marked[model] == pytest.approx(expected, rel=0.1)
    assert {row.tokens for row in read(half) if row.truncated} == {250}


def test_a_trained_model_starts_from_its_own_answers(file: Path) -> None:
    """The later model's answers are three times as long; a third starts from both."""
    known = LengthModels.of(file, ["small", "large", "new"])
    small, large, new = (
        known.classes(name).estimate().expected_tokens for name in ("small", "large", "new")
    )
    assert large == pytest.approx(3 * small, rel=0.1)
    assert small < new < large


def test_longer_answers_are_predicted_for_prompts_that_want_more(file: Path, embed: Embed) -> None:
    known = LengthModels.of(file, ["large"])
    brief, long = (
        known.predict("large", prompt, embed(prompt))
        for prompt in (
            "define moss and salt for a class of 3",
            "write moss and salt for a class of 3",
        )
    )
    assert brief.source == long.source == "model"
    assert 3 * brief.expected_tokens < long.expected_tokens
    assert brief.class_ < long.class_


def test_nothing_is_kept_of_models_that_are_not_served(embed: Embed) -> None:
    known = LengthModels.of(None, ["served"])
    assert known.saved().keys() == {"served"}
    assert known.predict("other", "hello", embed("hello")).expected_tokens > 0


def test_what_cannot_be_read_back_counts_for_nothing() -> None:
    known = LengthModels.of(None, ["served"])
    before = known.classes("served").edges_tokens
    known.restore({"served": b"\xff" * 12, "gone": b""})
    assert known.classes("served").edges_tokens == before


def test_what_was_observed_is_restored(embed: Embed) -> None:
    known, later = LengthModels.of(None, ["served"]), LengthModels.of(None, ["served"])
    for _ in range(200):
        said = known.predict("served", "hello", embed("hello"))
        known.classes("served").observe(77, said.probabilities)
    later.restore(known.saved())
    assert later.classes("served").edges_tokens == known.classes("served").edges_tokens
    assert later.classes("served").edges_tokens[1] == pytest.approx(77, rel=0.02)


@pytest.fixture(scope="module")
def shipped() -> LengthModels:
    return LengthModels.of(None, ())


@given(prompt=st.text(st.characters(codec=None), max_size=200))
@example("")
@example("?")
@example("a")
@example("\u00e9")
@example("\U0001f9a9")
def test_the_predictor_that_ships_answers_any_text(
    shipped: LengthModels, embed: Embed, prompt: str
) -> None:
    """One letter, and none, too."""
    found = shipped.predict("any", prompt, embed(prompt))
    assert 0 < found.low_tokens <= found.high_tokens
    assert sum(found.probabilities) == pytest.approx(1, abs=1e-3)


def test_the_predictor_that_ships_is_small_and_from_licensed_data() -> None:
    """Sets that their licences keep to tests are not among its sources."""
    assert DEFAULT.stat().st_size < 3_000_000
    assert SOURCES.keys() == {"oasst_eval.jsonl", "gpteacher.jsonl", "arena_hard.jsonl"}
    assert not [
        name for name in ProxyModel().known.classes if "ShareGPT" in name or "Llama" in name
    ]


@pytest.mark.parametrize("content", [None, b"", b"not onnx"], ids=["missing", "empty", "other"])
def test_a_file_that_is_not_a_predictor_is_refused_by_name(
    content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "mine.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FailedPrecondition, match=r"mine\.onnx"):
        ProxyModel(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"model": "m", "output_tokens": 1}', "prompt: str required"),
        ('{"model": "m", "prompt": "p", "output_tokens": "1"}', "output_tokens: int required"),
        ('{"model": "m", "prompt": "p", "output_tokens": true}', "output_tokens: int required"),
        ('{"model": "m", "prompt": "p", "output_tokens": -1}', "must be >= 0"),
    ],
    ids=["json", "object", "prompt", "text", "bool", "negative"],
)
def test_a_wrong_line_is_named(line: str, complaint: str, tmp_path: Path) -> None:
    right = json.dumps({"model": "m", "prompt": "p", "output_tokens": 1})
    path = tmp_path / "log.jsonl"
    path.write_text(f"{right}\n\n{line}\n")
    with pytest.raises(InvalidArgument, match=rf"log\.jsonl:3: .*{complaint}"):
        read(path)


def test_a_file_without_answers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="No such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InvalidArgument, match="no answers"):
        read(tmp_path / "empty.jsonl")


def test_too_few_prompts_are_refused(embed: Embed) -> None:
    with pytest.raises(InvalidArgument, match="50 prompts"):
        fit([Row("m", f"prompt {number % 49}", number) for number in range(500)], embed)


@given(st.lists(st.integers(0, 20), min_size=1), st.floats(0, 1), st.integers(0, 9))
def test_no_prompt_is_on_both_sides(prompts: list[int], share: float, seed: int) -> None:
    rows = [Row("m", str(prompt), place) for place, prompt in enumerate(prompts)]
    training, testing = split(rows, share, seed)
    assert not {row.prompt for row in training} & {row.prompt for row in testing}
    assert sorted(training + testing, key=lambda row: row.tokens) == rows


def test_measures_of_a_small_case_by_hand() -> None:
    """Of four answers two classes are right; of six pairs five are in order, one is a tie."""
    true, called = np.array([0, 1, 2, 3]), np.array([0, 1, 1, 1])
    found = measure(true, np.array([10.0, 20, 30, 40]), called, np.array([1.0, 2, 2, 4]))
    assert found.accuracy == 0.5
    assert found.l1 == 0.75
    assert found.mse == 1.25
    assert found.f1 == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    assert found.pair_order == pytest.approx(5.5 / 6)
    assert confusion(true, called)[3, 1] == 1


def test_order_among_equal_lengths_is_chance() -> None:
    assert pair_order(np.ones(5), np.arange(5.0)) == 0.5


@pytest.mark.parametrize(
    ("path", "models", "least"),
    [
        pytest.param(MADE_UP / "prompts.jsonl", "made-up", 0.75, id="made up"),
        pytest.param(ALPACA, "Llama-3-8B", 0.55, id="published", marks=needs_alpaca),
    ],
)
def test_the_predictor_that_ships_predicts_the_longer_answer_of_a_model_never_seen(
    shipped: LengthModels, embed: Embed, path: Path, models: str, least: float
) -> None:
    """Trained on other models and other prompts; chance is 0.50, give or take 0.023 on Alpaca's."""
    rows = [row for row in read(path) if models in row.model]
    rows = rows[:: 1 + len(rows) // 270]
    expected = [
        shipped.predict("never-seen", row.prompt, embed(row.prompt)).expected_tokens for row in rows
    ]
    assert pair_order(np.array([row.tokens for row in rows]), np.array(expected)) > least
