"""Networks that mix the items of a batch, or answer with what they find; and some that do not.

Written in ONNX's own text form: (inputs) => (outputs) { operators }. All inputs are free in the
first size.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MIXING: Final[Mapping[str, str]] = {
    # What is found: rows of the output are no items.
    "detections by NonMaxSuppression": """
        (float[n,8,4] boxes, float[n,2,8] scores) => (int64[m,3] found)
        <int64[1] most = {1}, float[1] overlap = {0.5}, float[1] least = {1.0}>
        { found = NonMaxSuppression(boxes, scores, most, overlap, least) }""",
    "detections by NonZero": """
        (float[n,4] x) => (int64[m,2] found)
        <float one = {0.5}>
        {
          sure = Greater(x, one)
          places = NonZero(sure)
          found = Transpose<perm = [1, 0]>(places)
        }""",
    "spans, one as a rule": """
        (float[n,8] start, float[n,8] end) => (float[m] begin)
        <float half = {0.5}, int64[1] last = {1}>
        {
          s = Softmax(start)
          e = Softmax(end)
          both = Mul(s, e)
          best = ReduceMax<keepdims = 0>(both, last)
          sure = Greater(best, half)
          begin = Compress<axis = 0>(best, sure)
        }""",
    "distinct values": """
        (int64[n,2] x) => (int64[m,2] y)
        { y = Unique<axis = 0, sorted = 1>(x) }""",
    "Compress": """
        (float[n,4] x) => (float[m,4] y)
        <int64[1] last = {1}, float zero = {0.0}>
        {
          sum = ReduceSum<keepdims = 0>(x, last)
          kept = Greater(sum, zero)
          y = Compress<axis = 0>(x, kept)
        }""",
    "a mask that rejects few": """
        (float[n,4] x) => (float[m,4] y)
        <float far = {100000.0}, int64[1] last = {1}>
        {
          top = ReduceMax<keepdims = 0>(x, last)
          kept = Less(top, far)
          y = Compress<axis = 0>(x, kept)
        }""",
    "a loop until all are done": """
        (float[n,4] x) => (float[n,4] y)
        <int64 most = {20}, bool go = {1}, float one = {1.0}, float half = {0.5}>
        {
          y = Loop(most, go, x) <body = inside (int64 i, bool c, float[n,4] a)
            => (bool d, float[n,4] b)
            {
              b = Mul(a, half)
              large = ReduceMax<keepdims = 0>(b)
              d = Greater(large, one)
            }>
        }""",
    # The items of a batch in one answer.
    "softmax over the batch": "(float[n,4] x) => (float[n,4] y) { y = Softmax<axis = 0>(x) }",
    "batch normalisation in training": """
        (float[n,4] x) => (float[n,4] y)
        <float[4] scale = {1.0, 2.0, 3.0, 4.0}, float[4] bias = {0.0, 0.0, 0.0, 0.0},
         float[4] mean = {0.0, 0.0, 0.0, 0.0}, float[4] var = {1.0, 1.0, 1.0, 1.0}>
        { y, m, v = BatchNormalization<training_mode = 1>(x, scale, bias, mean, var) }""",
    "the mean of the batch": """
        (float[n,4] x) => (float[n,4] y)
        <int64[1] first = {0}>
        {
          mean = ReduceMean<keepdims = 1>(x, first)
          y = Sub(x, mean)
        }""",
    "a thousandth of the mean": """
        (float[n,4] x) => (float[n,4] y)
        <int64[1] first = {0}, float little = {0.001}>
        {
          mean = ReduceMean<keepdims = 1>(x, first)
          part = Mul(mean, little)
          y = Add(x, part)
        }""",
    "a running sum over the batch": """
        (float[n,4] x) => (float[n,4] y)
        <int64 first = {0}>
        { y = CumSum(x, first) }""",
    "a flattened reshape": """
        (float[n,4] x) => (float[n,4] y)
        <int64[2] flat = {4, -1}, int64[2] back = {-1, 4}>
        {
          columns = Reshape(x, flat)
          soft = Softmax<axis = 1>(columns)
          y = Reshape(soft, back)
        }""",
    "the best of the batch": """
        (float[n,4] x) => (float[n,4] y)
        {
          shape = Shape<start = 0, end = 1>(x)
          y, places = TopK<axis = 0>(x, shape)
        }""",
    "places in the batch": """
        (float[n,4] x) => (int64[n,4] y)
        {
          shape = Shape<start = 0, end = 1>(x)
          z, y = TopK<axis = 0>(x, shape)
        }""",
    "a scale of the whole batch": """
        (float[n,4] x) => (float[n,4] y)
        {
          q, scale, zero = DynamicQuantizeLinear(x)
          y = DequantizeLinear(q, scale, zero)
        }""",
    "the first size is time": """
        (float[n,1,4] x) => (float[n,1,1,4] y)
        <float[1,4,4] w, float[1,4,4] r>
        { y = RNN<hidden_size = 4>(x, w, r) }""",
    "the place in the batch": """
        (float[n,1] x) => (float[n,1] y)
        <int64 zero = {0}, int64 one = {1}, int64[2] column = {-1, 1}>
        {
          shape = Shape<start = 0, end = 1>(x)
          size = Squeeze(shape)
          places = Range(zero, size, one)
          column_ = Reshape(places, column)
          numbers = Cast<to = 1>(column_)
          y = Add(x, numbers)
        }""",
    "a share of the batch": """
        (float[n,4] x) => (float[n,4] y)
        {
          shape = Shape<start = 0, end = 1>(x)
          size = Cast<to = 1>(shape)
          y = Div(x, size)
        }""",
    "chance": """
        (float[n,4] x) => (float[n,4] y)
        {
          noise = RandomNormalLike(x)
          y = Add(x, noise)
        }""",
    "texts joined over the batch": """
        (string[n,1] x) => (string[n,1] y)
        <int64[1] last = {-1}>
        {
          shape = Shape<start = 0, end = 1>(x)
          zero = Sub(shape, shape)
          first = Gather(x, zero)
          flat = Reshape(first, last)
          y = StringConcat(x, flat)
        }""",
    "one item decides for all": """
        (float[n,4] x) => (float[n,4] y)
        <float zero = {0.0}>
        {
          large = ReduceMax<keepdims = 0>(x)
          over = Greater(large, zero)
          y = If(over)
            <then_branch = yes () => (float[n,4] a) { a = Exp(x) },
             else_branch = no () => (float[n,4] b) { b = Abs(x) }>
        }""",
}

HONEST: Final[Mapping[str, str]] = {
    "a network": """
        (float[n,16] x) => (float[n,3] y)
        <float[16,32] w, float[32,3] v>
        {
          a = MatMul(x, w)
          b = Relu(a)
          c = MatMul(b, v)
          y = Softmax(c)
        }""",
    "a convolution of free sizes": """
        (float[n,3,h,w] x) => (float[n,4,1,1] y)
        <float[4,3,3,3] k>
        {
          a = Conv(x, k)
          b = Relu(a)
          y = GlobalAveragePool(b)
        }""",
    "half precision": """
        (float[n,16] x) => (float[n,8] y)
        <float[16,64] w, float[64,8] v>
        {
          h = Cast<to = 10>(x)
          wh = Cast<to = 10>(w)
          vh = Cast<to = 10>(v)
          a = MatMul(h, wh)
          b = Tanh(a)
          c = MatMul(b, vh)
          y = Cast<to = 1>(c)
        }""",
    "eight bits": """
        (float[n,16] x) => (float[n,4] y)
        <float s = {0.05}, int8 z = {0}, float[16,4] w>
        {
          q = QuantizeLinear(x, s, z)
          d = DequantizeLinear(q, s, z)
          wq = QuantizeLinear(w, s, z)
          wd = DequantizeLinear(wq, s, z)
          a = MatMul(d, wd)
          aq = QuantizeLinear(a, s, z)
          y = DequantizeLinear(aq, s, z)
        }""",
    "a class": """
        (float[n,16] x) => (int64[n] y)
        <float[16,10] w>
        {
          a = MatMul(x, w)
          y = ArgMax<axis = 1, keepdims = 0>(a)
        }""",
    "tokens of a small vocabulary, and their mask": """
        (int64[n,t] tokens, int64[n,t] mask, int64[n,t] kind) => (float[n,8] y)
        <float[1009,8] table, float[2,8] kinds, int64[1] second = {1}, int64[1] last = {-1}>
        {
          a = Gather(table, tokens)
          k = Gather(kinds, kind)
          ak = Add(a, k)
          m = Cast<to = 1>(mask)
          column = Unsqueeze(m, last)
          kept = Mul(ak, column)
          y = ReduceSum<keepdims = 0>(kept, second)
        }""",
    "attention, reshaped by the size of the batch": """
        (float[n,t,8] x) => (float[n,t,8] y)
        <float[8,8] q, float[8,8] k, int64[2] heads = {2, 4}, int64[1] whole = {8}>
        {
          a = MatMul(x, q)
          b = MatMul(x, k)
          sizes = Shape<start = 0, end = 2>(x)
          apart = Concat<axis = 0>(sizes, heads)
          ar = Reshape(a, apart)
          br = Reshape(b, apart)
          at = Transpose<perm = [0, 2, 1, 3]>(ar)
          bt = Transpose<perm = [0, 2, 3, 1]>(br)
          scores = MatMul(at, bt)
          soft = Softmax(scores)
          mixed = MatMul(soft, at)
          back = Transpose<perm = [0, 2, 1, 3]>(mixed)
          together = Concat<axis = 0>(sizes, whole)
          y = Reshape(back, together)
        }""",
    "a recurrent network, batch first": """
        (float[n,5,4] x) => (float[n,5,4] y)
        <float[1,4,4] w, float[1,4,4] r, int64[1] direction = {1}>
        {
          t = Transpose<perm = [1, 0, 2]>(x)
          h = RNN<hidden_size = 4>(t, w, r)
          s = Squeeze(h, direction)
          y = Transpose<perm = [1, 0, 2]>(s)
        }""",
    "a loop of a fixed length": """
        (float[n,4] x) => (float[n,4] y)
        <int64 most = {5}, bool go = {1}, float half = {0.5}>
        {
          y = Loop(most, go, x) <body = inside (int64 i, bool c, float[n,4] a)
            => (bool d, float[n,4] b)
            {
              b = Mul(a, half)
              d = Identity(c)
            }>
        }""",
    "places by NonZero of a size": """
        (float[n,4] x) => (float[n,4] y)
        <int64[1] four = {4}, int64[1] flat = {-1}>
        {
          ones = ConstantOfShape<value = int64[1] {1}>(four)
          nonzero = NonZero(ones)
          places = Reshape(nonzero, flat)
          y = Gather<axis = 1>(x, places)
        }""",
    "texts": """
        (string[n,1] x) => (string[n,1] y)
        <string[1] end = {"!"}>
        { y = StringConcat(x, end) }""",
    "truth values": "(bool[n,4] x) => (bool[n,4] y) { y = Not(x) }",
    "small integers": """
        (uint8[n,4] x) => (float[n,4] y)
        { y = Cast<to = 1>(x) }""",
    "doubles": """
        (double[n,16] x) => (double[n,1] y)
        <int64[1] last = {1}>
        { y = ReduceLogSumExp<keepdims = 1>(x, last) }""",
    "logarithms of negative numbers": "(float[n,4] x) => (float[n,4] y) { y = Log(x) }",
}


def save(file: Path, text: str) -> Path:
    """Write a network; weights without values are random ones."""
    parsed = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {text}')
    random = np.random.default_rng(7)
    held = {each.name for each in parsed.graph.initializer}
    for value in parsed.graph.value_info:
        tensor = value.type.tensor_type
        if value.name not in held and tensor.elem_type == TensorProto.FLOAT:
            shape = [size.dim_value for size in tensor.shape.dim]
            weights = random.standard_normal(shape).astype(np.float32)
            parsed.graph.initializer.append(numpy_helper.from_array(weights, value.name))
    del parsed.graph.value_info[:]
    onnx.save(parsed, file)
    return file


def calling_itself(file: Path) -> Path:
    """Write a network whose operators are a function of the file, which finds what it wants."""
    function = helper.make_function(
        "mine",
        "Found",
        ["x"],
        ["y"],
        [
            helper.make_node("NonZero", ["x"], ["places"]),
            helper.make_node("Transpose", ["places"], ["y"], perm=[1, 0]),
        ],
        [helper.make_opsetid("", 20)],
    )
    graph = helper.make_graph(
        [helper.make_node("Found", ["x"], ["y"], domain="mine")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["m", 2])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)
    onnx.save(model, file)
    return file
