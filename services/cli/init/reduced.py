"""Variants of a network at a lower precision, by ONNX Runtime's tools."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import onnx
from onnxruntime import quantization
from onnxruntime.transformers.float16 import convert_float_to_float16

from services.cli.init.inputs import cast
from services.cli.init.network import MEASURED_CPU_S, Network, reads
from services.cli.samples import Input, Samples, read_samples
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.operators.onnx_reader import load
from services.kit.operators.shape_trace import session
from services.kit.process.confined import confined

CALIBRATION: Final = 128
"""Maximum number of items that 8-bit scales are computed from."""

_DRAFT: Final = "draft.onnx"


def reduce(network: Network, precision: str, data: Path, count: int) -> Path:
    """Write a network at another precision beside its file, and return the new file.

    Inputs and outputs keep their types, so that both answer the same requests. A confined process
    converts it.

    Args:
        network: The network.
        precision: "fp16" or "int8" (static, scales per channel, as Q and DQ operators).
        data: Validation set.
        count: Its first items, so many, are for the scales of "int8"; accuracy is to be measured on
            others.

    Raises:
        InvalidArgument: The tools cannot convert it.
    """
    file = network.file
    target = file.with_name(f"{file.stem}-{precision}.onnx")
    with TemporaryDirectory(prefix=".cinquefoil-", dir=file.parent) as scratch:
        draft = Path(scratch) / _DRAFT
        confined(
            convert, network, precision, data, count, draft,
            file=file, reads=reads(file, data), scratch=Path(scratch), cpu_s=MEASURED_CPU_S,
        )  # fmt: skip
        draft.replace(target)
    return target


def convert(network: Network, precision: str, data: Path, count: int, target: Path) -> None:
    """Write a network at another precision. Call it in a confined process."""
    logging.getLogger().setLevel(logging.ERROR)  # advice on preprocessing, to the root logger
    model = load(network.file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # values that fp16 rounds to zero: accuracy is measured
            if precision == "fp16":
                half = convert_float_to_float16(model, keep_io_types=True)
                onnx.save(half, target)
            else:
                inputs = [Input(each.name, each.shape) for each in network.inputs]
                quantization.quantize_static(
                    model,
                    target,
                    _Calibration(model, read_samples(data, inputs).part(0, count)),
                    quant_format=quantization.QuantFormat.QDQ,
                    per_channel=True,
                )
    except ServiceError:
        raise
    except Exception as error:  # the tools' errors share no base class
        raise InvalidArgument(f"{network.file} cannot be made {precision}: {error}") from error


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc] # has no types
    """Gives items one after the other."""

    def __init__(self, model: onnx.ModelProto, samples: Samples) -> None:
        described = session(model.SerializeToString()).get_inputs()
        self._items = (
            cast(samples.part(place, place + 1).tensors, described) for place in range(len(samples))
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._items, None)
