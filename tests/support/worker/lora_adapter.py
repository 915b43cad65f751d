"""A LoRA adapter of SmolLM2-135M in a GGUF file: random, and strong enough to change each answer.

Source: ggml, "GGUF", file structure; llama.cpp, `convert_lora_to_gguf.py`, names of tensors.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

_WIDTH: Final = 576
_RANK: Final = 4
_ALIGNMENT: Final = 32
_FLOAT32, _STRING = 6, 8  # types of values
_VALUES: Final[Mapping[str, str | float]] = {
    "general.type": "adapter",
    "general.architecture": "llama",
    "adapter.type": "lora",
    "adapter.lora.alpha": 64.0,
}
_SHAPES: Final = {
    "blk.0.attn_q.weight.lora_a": (_RANK, _WIDTH),
    "blk.0.attn_q.weight.lora_b": (_WIDTH, _RANK),
}


def write(file: Path) -> Path:
    """Write the adapter, and return its file."""
    values = b"".join(_text(name) + _value(value) for name, value in _VALUES.items())
    random, infos, data = np.random.default_rng(1), b"", b""
    for name, shape in _SHAPES.items():
        sizes = struct.pack(f"<I{len(shape)}QI", len(shape), *reversed(shape), 0)  # 0: float32
        infos += _text(name) + sizes + struct.pack("<Q", len(data))
        data += random.normal(size=shape).astype("<f4").tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(_SHAPES), len(_VALUES)) + values + infos
    file.write_bytes(head + bytes(-len(head) % _ALIGNMENT) + data)
    return file


def _value(value: str | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    return struct.pack("<If", _FLOAT32, value)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
