"""Operators whose output sizes depend on data are found, and only those that inputs reach."""

import pytest

from services.kit.operators.core.data_dependence import Body, GraphNode, data_dependent


def node(kind: str, inputs: str, outputs: str, *bodies: Body) -> GraphNode:
    return GraphNode(kind, inputs.split(), outputs.split(), bodies)


def found(*nodes: GraphNode, functions: dict[str, Body] | None = None) -> str:
    return data_dependent(Body(nodes, ["x"], ["y"]), functions or {})


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("NonZero", "x", "y")], "NonZero"),
        ([node("NonZero", "weights", "y")], ""),
        (
            [node("Shape", "x", "s"), node("ConstantOfShape", "s", "c"), node("NonZero", "c", "y")],
            "",
        ),
        ([node("Shape", "x", "s"), node("Reshape", "x s", "y")], ""),
        ([node("Reshape", "x x", "y")], "Reshape"),
        ([node("ReduceMax", "x", "m"), node("Range", "zero m one", "y")], "Range"),
        ([node("Compress", "x kept", "y")], ""),
        ([node("Greater", "x zero", "kept"), node("Compress", "w kept", "y")], "Compress"),
        ([node("ReduceSum", "x axes", "y")], ""),
        ([node("ReduceSum", "w x", "y")], "ReduceSum"),
        ([node("TopK", "x k", "y i")], ""),
        ([node("Slice", "x start end", "y")], ""),
        ([node("ArgMax", "x", "place"), node("Slice", "x zero place", "y")], "Slice"),
        ([node("ArgMax", "x", "place"), node("Gather", "table place", "y")], ""),
        ([node("Unique", "z", "y"), node("Identity", "x", "z")], "Unique"),  # in another order
        ([node("Resize", "x roi scales", "y")], ""),
    ],
)
def test_sizes_that_depend_on_data_are_found(nodes: list[GraphNode], why: str) -> None:
    """A size may come of sizes and of weights, but of no value that an input holds."""
    assert found(*nodes) == why


def test_branches_and_loops_that_go_by_data_are_found() -> None:
    inside = Body([node("NonZero", "x", "a")], [], ["a"])
    harmless = Body([node("Exp", "x", "a")], [], ["a"])
    until = Body(
        [node("ReduceMax", "v", "m"), node("Less", "m one", "go")], ["i", "c", "v"], ["go", "v"]
    )
    times = Body([node("Identity", "c", "go")], ["i", "c", "v"], ["go", "v"])

    assert found(node("If", "x", "y", harmless)) == "If"
    assert found(node("If", "constant", "y", harmless)) == ""
    assert found(node("If", "constant", "y", inside)) == "NonZero"
    assert found(node("Loop", "most on x", "y", until)) == "Loop"
    assert found(node("Loop", "most on x", "y", times)) == ""
    assert found(node("If", "constant", "z", harmless), node("Unique", "z", "y")) == "Unique"


def test_functions_of_the_file_are_looked_into() -> None:
    sizes = Body([node("Shape", "a", "b")], ["a"], ["b"])
    finds = Body([node("NonZero", "a", "b")], ["a"], ["b"])
    again = Body([node("Mine", "a", "b")], ["a"], ["b"])

    assert found(node("Mine", "x", "y"), functions={"Mine": finds}) == "NonZero"
    assert found(node("Mine", "w", "y"), functions={"Mine": finds}) == ""
    to = [node("Mine", "x", "s"), node("Reshape", "x s", "y")]
    assert found(*to, functions={"Mine": sizes}) == ""
    assert "calls itself" in found(node("Mine", "x", "y"), functions={"Mine": again})
