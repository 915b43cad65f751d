"""Input of capacity planning: ParvaGPU's files, and ours; mistakes are named."""

from pathlib import Path

import pytest

from services.kit.errors import InvalidArgument
from services.planner.capacity.fleet_sizing import Service
from services.planner.capacity.input_files import read_profiles, read_scenario, read_services

YAML = """
- {model: bert, rate_rps: 19, latency_s: 6.434}
- {model: resnet50, rate_rps: 829, latency_s: 0.2045}
"""
MODELS = ("bert", "resnet50")
TABLE = "Mig instance,Batch size,Workload Number,Throughput,Latency\n1,1,1,74.4,0.013\n1,2,1,0,0\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    return write(tmp_path / "rates.csv", "19,829\n46,N/A")


@pytest.fixture
def latencies(tmp_path: Path) -> Path:
    return write(tmp_path / "latencies.csv", "6434,204.5\n4294,N/A")


def test_a_row_of_parvagpu_s_files_is_a_scenario(rates: Path, latencies: Path) -> None:
    """No header, no newline at the end, milliseconds, N/A: absent."""
    assert read_scenario(rates, latencies, 1, MODELS) == (
        Service("bert", 19.0, 6.434),
        Service("resnet50", 829.0, 0.2045),
    )
    assert read_scenario(rates, latencies, 2, MODELS) == (Service("bert", 46.0, 4.294),)


@pytest.mark.parametrize("scenario", [0, -1, 3])
def test_a_scenario_out_of_range_is_refused(rates: Path, latencies: Path, scenario: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"rates\.csv: no scenario {scenario}.* 1 to 2"):
        read_scenario(rates, latencies, scenario, MODELS)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("19,nan", r"row 1: resnet50: must be a positive number or N/A, got 'nan'"),
        ("19,-3", r"row 1: resnet50: .* got '-3'"),
        ("19,inf", r"row 1: resnet50: .* got 'inf'"),
        ("fast,829", r"row 1: bert: .* got 'fast'"),
        ("19", r"row 1: 1 columns for 2 profiles \(bert, resnet50\)"),
        ("19,N/A", r"row 1: resnet50: N/A, but the other file has a number"),
        ("", r"no scenario 1; the file is empty"),
    ],
)
def test_a_wrong_rate_is_named_with_file_row_and_model(
    tmp_path: Path, latencies: Path, row: str, message: str
) -> None:
    rates = write(tmp_path / "wrong.csv", row)
    with pytest.raises(InvalidArgument, match=rf"wrong\.csv: {message}"):
        read_scenario(rates, latencies, 1, MODELS)


def test_a_scenario_without_any_model_is_refused(tmp_path: Path) -> None:
    nothing = write(tmp_path / "nothing.csv", "N/A,N/A\n")
    with pytest.raises(InvalidArgument, match=r"row 1: every model is N/A"):
        read_scenario(nothing, nothing, 1, MODELS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ours.csv", "model,rate_rps,latency_s\nbert,19,6.434\nresnet50,829,0.2045\n"),
        ("ours.yaml", YAML),
    ],
)
def test_our_format_is_csv_or_yaml(tmp_path: Path, name: str, text: str) -> None:
    assert read_services(write(tmp_path / name, text)) == (
        Service("bert", 19.0, 6.434),
        Service("resnet50", 829.0, 0.2045),
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "model,rate_rps,latency_s\n", "no service"),
        ("a.csv", "", "row 1 is the header and lacks model, rate_rps, latency_s"),
        ("a.csv", "model,rate_rps\nbert,19\n", "row 1 is the header and lacks latency_s"),
        ("a.csv", "model,rate_rps,latency_s\nbert,nan,1\n", "row 2: rate_rps: must be a finite"),
        ("a.csv", "model,rate_rps,latency_s\nbert,-1,1\n", "row 2: rate_rps: must be greater"),
        ("a.csv", "model,rate_rps,latency_s\nbert,1,1\nbert,2,1\n", "more than once: bert"),
        ("a.csv", "model,rate_rps,latency_s\nbert,1,1,7\n", "row 2: 4 cells for 3 columns"),
        ("a.csv", "model,rate_rps,latency_s\nbert,1\n", "row 2: 2 cells for 3 columns"),
        ("a.csv", "model,rate_rps,latency_s,slo\nbert,1,1,7\n", "row 2: slo: unknown key"),
        ("a.csv", "model,model,rate_rps,latency_s\na,b,1,1\n", "row 1: more than once: model"),
        ("a.csv", f"model,rate_rps,latency_s\n{'b' * 140_000},1,1\n", "is not CSV: field larger"),
        ("a.yaml", "bert: 1\n", "must be a list of services"),
        ("a.yaml", "- bert\n", "row 1: must be a mapping, key: value; got 'bert'"),
        ("a.yaml", "- {model: a, rate_rps: 1, rate_rps: 2, latency_s: 1}\n", "given twice"),
        ("a.yaml", "- {model: a, rate_rps: 1}\n", "row 1: latency_s: required, but missing"),
        ("a.yaml", "- {", "line 2: yaml: "),
    ],
)
def test_a_wrong_row_of_our_format_is_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """In a sentence of ours: pydantic's types and YAML's excerpts mean nothing to a user."""
    with pytest.raises(InvalidArgument, match=rf"(?s)a\.\w+: .*{message}") as refused:
        read_services(write(tmp_path / name, text))
    assert "\n" not in str(refused.value)
    assert "_Row" not in str(refused.value)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path, latencies: Path) -> None:
    """Spreadsheets write one."""
    ours = write(tmp_path / "ours.csv", "\ufeffmodel,rate_rps,latency_s\nbert,19,6.434\n")
    assert read_services(ours) == (Service("bert", 19.0, 6.434),)
    rates = write(tmp_path / "marked.csv", "\ufeff19,829\n")
    assert read_scenario(rates, latencies, 1, MODELS)[0] == Service("bert", 19.0, 6.434)


def test_a_file_that_is_absent_is_named(tmp_path: Path, rates: Path) -> None:
    for read in (
        lambda: read_services(tmp_path / "absent.csv"),
        lambda: read_scenario(rates, tmp_path / "absent.csv", 1, MODELS),
        lambda: read_profiles(tmp_path / "absent.csv", "a100-80gb"),
    ):
        with pytest.raises(InvalidArgument, match=r"absent\.csv"):
            read()


def test_profiles_come_in_order_of_file_name(tmp_path: Path) -> None:
    """ParvaGPU's columns follow it: "." sorts after "-"."""
    for name in ("resnet50.csv", "bert.csv", "bert-large.csv", "notes.txt"):
        write(tmp_path / name, TABLE)
    assert list(read_profiles(tmp_path, "a100-80gb")) == ["bert-large", "bert", "resnet50"]


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"no \.csv or \.parquet file"):
        read_profiles(tmp_path, "a100-80gb")


def test_a_wrong_profile_is_named_with_file_and_row(tmp_path: Path) -> None:
    """0,0 means out of memory; NaN means nothing."""
    write(tmp_path / "good.csv", TABLE)
    write(tmp_path / "wrong.csv", TABLE + "1,4,1,NaN,NaN\n")
    with pytest.raises(InvalidArgument, match=r"wrong\.csv: row 4: .* got nan"):
        read_profiles(tmp_path, "a100-80gb")
