"""A trained predictor as one ONNX file: the network, and the lengths it was trained on."""

import json
from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, checker, helper, numpy_helper

from services.predictor.adapters.proxy_model import FORMAT, METADATA
from services.predictor.core.estimate import CLASS_COUNT
from services.predictor.core.features import BUCKETS, SHALLOW
from services.predictor.training.core.fit import Body, Trained
from services.predictor.training.core.head import CLIP

_OPSET, _IR = 18, 9


def to_onnx(trained: Trained) -> bytes:
    """Return a predictor as `services.predictor.adapters.proxy_model` reads it.

    The table of n-grams is kept in half precision, 1.6 MB: probabilities stay within 0.002.
    """
    words, word_values = _gram_nodes("word", trained.body, slice(0, BUCKETS))
    runs, run_values = _gram_nodes("run", trained.body, slice(BUCKETS, None))
    head, head_values = _head_nodes(trained)
    size = len(trained.body.directions)
    graph = helper.make_graph(
        [*words, *runs, *head],
        "output_length",
        [
            *_gram_inputs("word"),
            *_gram_inputs("run"),
            helper.make_tensor_value_info("shallow", TensorProto.FLOAT, [len(SHALLOW)]),
            helper.make_tensor_value_info("vector", TensorProto.FLOAT, [size]),
            helper.make_tensor_value_info("edges", TensorProto.FLOAT, [CLASS_COUNT - 1]),
        ],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [CLASS_COUNT])],
        [*word_values, *run_values, *head_values],
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(
        graph, opset_imports=[opset], ir_version=_IR, producer_name="cinquefoil"
    )
    helper.set_model_props(model, {METADATA: _metadata(trained)})
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def _gram_inputs(kind: str) -> list[Any]:
    return [
        helper.make_tensor_value_info(f"{kind}_columns", TensorProto.INT64, [f"{kind}s"]),
        helper.make_tensor_value_info(f"{kind}_counts", TensorProto.FLOAT, [f"{kind}s"]),
    ]


def _gram_nodes(kind: str, body: Body, columns: slice) -> tuple[list[Any], list[Any]]:
    """Return nodes that add up n-grams' weights, as counts times rarity, scaled to length 1."""
    table = np.concatenate((body.encoder[columns], body.rarity[columns, None]), axis=1)
    values = [
        numpy_helper.from_array(table.astype(np.float16), f"{kind}_table"),
        numpy_helper.from_array(np.array([CLASS_COUNT, 1], np.int64), f"{kind}_parts"),
        numpy_helper.from_array(np.array([1], np.int64), f"{kind}_axis"),
        numpy_helper.from_array(np.array(1e-9, np.float32), f"{kind}_least"),
        numpy_helper.from_array(np.array([0], np.int64), f"{kind}_first"),
    ]

    def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
        taken, given = ([f"{kind}_{each}" for each in side.split()] for side in (inputs, outputs))
        return helper.make_node(operator, taken, given, **attributes)

    return [
        node("Gather", "table columns", "half"),
        node("Cast", "half", "rows", to=TensorProto.FLOAT),
        node("Split", "rows parts", "weights rarity", axis=1),
        node("Squeeze", "rarity axis", "flat"),
        node("Mul", "counts flat", "values"),
        node("ReduceL2", "values", "length", keepdims=0),
        node("Max", "length least", "divisor"),
        node("Div", "values divisor", "scaled"),
        node("Unsqueeze", "scaled axis", "column"),
        node("Mul", "column weights", "products"),
        node("ReduceSum", "products first", "said", keepdims=0),
    ], values


def _head_nodes(trained: Trained) -> tuple[list[Any], list[Any]]:
    head = trained.head
    arrays: dict[str, NDArray[Any]] = {
        "directions": trained.body.directions,
        "means": head.means,
        "scales": head.scales,
        "inner": head.inner,
        "inner_offsets": head.inner_offsets,
        "outer": head.outer,
        "direct": head.direct,
        "offsets": head.offsets,
        "low": np.array(-CLIP),
        "high": np.array(CLIP),
    }
    steps = [
        ("Add", ["word_said", "run_said"], "said"),
        ("MatMul", ["vector", "directions"], "about"),
        ("Sub", ["inputs", "means"], "centred"),
        ("Mul", ["centred", "scales"], "standard"),
        ("Clip", ["standard", "low", "high"], "x"),
        ("MatMul", ["x", "inner"], "projected"),
        ("Add", ["projected", "inner_offsets"], "before"),
        ("Tanh", ["before"], "hidden"),
        ("MatMul", ["hidden", "outer"], "bent"),
        ("MatMul", ["x", "direct"], "straight"),
        ("Add", ["bent", "straight"], "both"),
        ("Add", ["both", "offsets"], "scores"),
        ("Softmax", ["scores"], "probabilities"),
    ]
    nodes = [helper.make_node(operator, inputs, [output]) for operator, inputs, output in steps]
    joined = helper.make_node("Concat", ["said", "shallow", "about", "edges"], ["inputs"], axis=0)
    nodes.insert(2, joined)
    values = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    return nodes, values


def _metadata(trained: Trained) -> str:
    classes = {name: _text(each.to_bytes()) for name, each in trained.classes.items()}
    prior = _text(trained.prior.astype("<f4").tobytes())
    return json.dumps({"format": FORMAT, "prior": prior, "classes": classes}, sort_keys=True)


def _text(data: bytes) -> str:
    return b64encode(data).decode()
