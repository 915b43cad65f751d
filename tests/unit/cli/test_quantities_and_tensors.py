"""Quantities and tensors on their way to people and back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grpc_service_pb2 import InferParameter, ModelInferResponse
from services.cli.console.names import gpu_name
from services.cli.console.quantities import carbon, change, energy, milliseconds, percent
from services.cli.tensors import outputs_of, parameters_of, request_of
from services.gpuagent.worker.tensors import DTYPES
from services.kit.errors import InvalidArgument


def test_quantities_choose_the_unit_that_keeps_them_short() -> None:
    assert [energy(value) for value in (0.0, 1.25, 1500, 3.6e6, 7.2e9)] == [
        *("0 J", "1.25 J", "1.5 kJ", "3.6 MJ", "2 MWh"),
    ]
    assert [carbon(value) for value in (5e-6, 0.075, 1.5, 2500, 3e6)] == [
        *("5 µgCO2e", "75 mgCO2e", "1.5 gCO2e", "2.5 kgCO2e", "3 tCO2e"),
    ]
    assert (milliseconds(None), milliseconds(0.0414), percent(0.125)) == ("", "41 ms", "12.5 %")


@pytest.mark.parametrize(
    ("before", "after", "more_is_better", "words", "style"),
    [
        (100.0, 150.0, False, "+50.0 % worse", "red"),
        (100.0, 80.0, False, "-20.0 % better", "green"),
        (0.8, 0.9, True, "+12.5 % better", "green"),
        (0.0, 3.0, False, "worse", "red"),
        (-0.06, 0.15, True, "better", "green"),
        (math.inf, 0.2, False, "better", "green"),
        (0.2, math.inf, False, "worse", "red"),
        (5.0, 5.0, True, "none", ""),
        (math.nan, 0.2, False, "none", ""),
        (0.2, math.nan, False, "none", ""),
    ],
)
def test_a_change_says_in_words_and_colour_whether_it_is_better(
    before: float, after: float, more_is_better: bool, words: str, style: str
) -> None:
    """Never by colour alone: terminals and eyes differ."""
    found = change(before, after, more_is_better=more_is_better)

    assert (found.plain, found.style) == (words, style)


def test_a_gpu_has_the_name_of_its_node_and_index_or_what_is_left_of_it() -> None:
    names = {"GPU-1f22a0": "node-0/1"}

    assert gpu_name(names, "GPU-1f22a0", "node-0") == "node-0/1"
    assert gpu_name(names, "GPU-77777777", "node-9") == "node-9/GPU-7777"
    assert gpu_name(names, "GPU-77777777") == "GPU-7777"


@given(st.floats(1e-6, 1e12))
def test_an_energy_read_back_is_the_energy(energy_j: float) -> None:
    number, unit = energy(energy_j).split()
    scale = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "MWh": 3.6e9}[unit]
    assert float(number) * scale == pytest.approx(energy_j, rel=0.006)


@pytest.mark.parametrize("datatype", DTYPES)
def test_a_tensor_survives_the_wire(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(DTYPES[datatype])
    request = request_of("digits", "x", datatype, array, "id-1")
    response = ModelInferResponse(
        outputs=[
            ModelInferResponse.InferOutputTensor(
                name="y", datatype=datatype, shape=request.inputs[0].shape
            )
        ],
        raw_output_contents=request.raw_input_contents,
    )
    (name, back), *_ = outputs_of(response).items()
    assert name == "y"
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_a_datatype_without_a_numpy_type_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="words: cannot send BF16; can send BOOL"):
        request_of("digits", "words", "BF16", np.zeros(1))


def test_texts_travel_both_ways_and_are_no_numbers() -> None:
    """An element of BYTES is its length and its bytes; where numbers are taken, texts are not."""
    texts = np.array(["a", "é"], object)
    sent = request_of("net", "words", "BYTES", texts)
    assert sent.raw_input_contents[0] == b"\1\0\0\0a\2\0\0\0\xc3\xa9"
    response = ModelInferResponse(raw_output_contents=sent.raw_input_contents)
    response.outputs.add(name="words", datatype="BYTES", shape=[2])
    assert outputs_of(response)["words"].tolist() == ["a", "é"]
    with pytest.raises(InvalidArgument, match="takes FP32, and the array has texts"):
        request_of("net", "words", "FP32", texts)


def test_parameters_become_python_values() -> None:
    response = ModelInferResponse(
        parameters={
            "a": InferParameter(string_param="x"),
            "b": InferParameter(double_param=1.5),
            "c": InferParameter(int64_param=3),
        }
    )
    assert parameters_of(response) == {"a": "x", "b": 1.5, "c": 3}
