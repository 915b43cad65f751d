"""Variants of a network at a lower precision, by ONNX Runtime's tools."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
from onnxruntime import quantization
from onnxruntime.transformers.float16 import convert_float_to_float16

from services.cli.init.network import Network
from services.cli.samples import Samples
from services.kit.errors import InvalidArgument

CALIBRATION: Final = 128
"""Maximum number of items that 8-bit scales are computed from."""


def reduce(network: Network, precision: str, samples: Samples) -> Path:
    """Write a network at another precision beside its file, and return the new file.

    Inputs and outputs keep their types, so that both answer the same requests.

    Args:
        network: The network.
        precision: "fp16" or "int8" (static, scales per channel, as Q and DQ operators).
        samples: Items for the scales of "int8"; accuracy is to be measured on others.

    Raises:
        InvalidArgument: The tools cannot convert it.
    """
    target = network.file.with_name(f"{network.file.stem}-{precision}.onnx")
    logging.getLogger().setLevel(logging.ERROR)  # advice on preprocessing, to the root logger
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # values that fp16 rounds to zero: accuracy is measured
            if precision == "fp16":
                half = convert_float_to_float16(onnx.load(network.file), keep_io_types=True)
                onnx.save(half, target)
            else:
                quantization.quantize_static(
                    network.file,
                    target,
                    _Calibration(network, samples),
                    quant_format=quantization.QuantFormat.QDQ,
                    per_channel=True,
                )
    except Exception as error:  # the tools' errors share no base class
        target.unlink(missing_ok=True)
        raise InvalidArgument(f"{network.file} cannot be made {precision}: {error}") from error
    return target


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc] # has no types
    """Gives items one after the other, or a batch at a time where its size is fixed."""

    def __init__(self, network: Network, samples: Samples) -> None:
        self._batches = self._all(network, samples)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._batches, None)

    @staticmethod
    def _all(network: Network, samples: Samples) -> Iterator[dict[str, Any]]:
        step = network.fixed_batch or 1
        for first in range(0, len(samples) - step + 1, step):
            yield dict(samples.part(first, first + step).inputs)
