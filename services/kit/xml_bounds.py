"""XML documents of others: no entities, and a bounded depth."""

from io import BytesIO
from typing import Final
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import iterparse

MOST_DEEP: Final = 32
"""Most elements within one another: documents of ENTSO-E have seven."""


def root_of(body: bytes) -> Element:
    """Return a document's root.

    Raises:
        ParseError, ValueError: It is not XML, or has too many elements within one another.
        DefusedXmlException: It declares entities.
    """
    opened: list[Element] = []
    root = None
    for event, element in iterparse(BytesIO(body), events=("start", "end")):
        if event == "end":
            root = opened.pop()
            continue
        opened.append(element)
        if len(opened) > MOST_DEEP:
            raise ValueError(f"more than {MOST_DEEP} elements within one another")
    if root is None:
        raise ParseError("it is empty")
    return root


def text_at(element: Element, path: str) -> str:
    """Return the text of the first element at `path`, in any namespace; empty without one."""
    return (element.findtext("/".join(f"{{*}}{name}" for name in path.split("/"))) or "").strip()
