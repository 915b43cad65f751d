"""The HTTP address described by itself: an OpenAPI document of its routes, and a page of them.

Source: OpenAPI Initiative, "OpenAPI Specification 3.1".
"""

import html
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiohttp import web
from pydantic import BaseModel

from services.kit.api_requests import PATHS
from services.router.edge.openai_messages import ApiBody
from services.router.edge.tensor_json import InferRequest

_BODIES: Final[Mapping[str, type[BaseModel]]] = {
    "/infer": InferRequest,
    "/infer_stream": InferRequest,
    **dict.fromkeys(PATHS, ApiBody),
}
"""Types of requests, by the end of their path."""

_MODEL: Final = "{model}"
_VARIABLE: Final = re.compile(r"\{(\w+)\}")
_SCHEMAS: Final = "#/components/schemas/{model}"


def document(routes: Iterable[web.RouteDef], version: str) -> Mapping[str, Any]:
    """Return an OpenAPI document.

    Args:
        routes: The routes.
        version: Of the server.
    """
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cinquefoil", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def of_model(whole: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return the part of a document that describes one model's paths."""
    paths = {
        path.replace(_MODEL, model): {
            verb: operation | {"parameters": operation["parameters"][1:]}
            for verb, operation in operations.items()
        }
        for path, operations in whole["paths"].items()
        if path.startswith(f"/v2/models/{_MODEL}")
    }
    return {**whole, "info": whole["info"] | {"title": f"Cinquefoil - {model}"}, "paths": paths}


def page(described: Mapping[str, Any]) -> str:
    """Return a document as a page without scripts."""
    title = html.escape(described["info"]["title"])
    rows = "".join(
        f"<tr><td>{verb.upper()}<td><code>{html.escape(path)}</code><td>"
        f"{html.escape(operation['summary'])}"
        for path, operations in described["paths"].items()
        for verb, operation in operations.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><h1>{title}</h1>"
        f"<p>OpenAPI {described['openapi']}: <a href=/openapi.json>/openapi.json</a><table>{rows}"
        "</table></html>"
    )


def _operation(route: web.RouteDef, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return an operation; the types that it refers to are added to `schemas`."""
    path = route.path
    said = inspect.getdoc(route.handler) or route.path
    operation: dict[str, Any] = {
        "summary": said.partition("\n")[0].rstrip("."),
        "responses": {"200": {"description": "OK"}, "default": {"description": "An error"}},
    }
    variables = _VARIABLE.findall(path)
    if variables:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in variables
        ]
    kind = next((each for end, each in _BODIES.items() if path.endswith(end)), None)
    if kind is not None:
        schema = kind.model_json_schema(ref_template=_SCHEMAS)
        schemas.update(schema.pop("$defs", {}))
        schemas[kind.__name__] = schema
        content = {"schema": {"$ref": _SCHEMAS.format(model=kind.__name__)}}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation
