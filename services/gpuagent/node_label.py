"""A label of the Kubernetes Node that a pod runs on, read with the pod's own account.

Sources: Kubernetes, "Accessing the Kubernetes API from a Pod"; API reference, Node;
"Kubernetes API Concepts", Metadata-only fetches.
"""

import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

from services.kit.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable

_LIMIT_S: Final = 10.0
_MOST_BYTES: Final = 2**20
_METADATA: Final = b"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"


def node_label(node: str, label: str, environment: Mapping[str, str], account: Path) -> str:
    """Return the value of a node's label; "": the node has none of this name.

    Args:
        node: Name of the Node.
        label: For example "cinquefoil.io/electricity-zone".
        environment: With the address that Kubernetes gives every container.
        account: Folder of the account's token (`token`) and the API server's authority (`ca.crt`).

    Raises:
        FailedPrecondition: This is no pod, or it has no token.
        InvalidArgument: There is no such node.
        PermissionDenied: The account may not read it.
        Unavailable: The API server does not answer as it should.
    """
    import httpx  # noqa: PLC0415 - agents that read no label start without

    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise FailedPrecondition("KUBERNETES_SERVICE_HOST and _PORT are not set: this is no pod")
    try:
        token = (account / "token").read_bytes().strip()
        authority = ssl.create_default_context(cafile=account / "ca.crt")
    except OSError as error:  # an ssl.SSLError, too
        raise FailedPrecondition(f"{account}: no token of the pod's account: {error}") from error
    shown = f"[{host}]" if ":" in host else host
    url = f"https://{shown}:{port}/api/v1/nodes/{quote(node, safe='')}"
    headers = {b"Authorization": b"Bearer " + token, b"Accept": _METADATA}
    body, ends_s = b"", time.monotonic() + _LIMIT_S
    try:
        with (
            httpx.Client(verify=authority, timeout=_LIMIT_S, trust_env=False) as client,
            client.stream("GET", url, headers=headers) as response,
        ):
            for piece in response.iter_bytes():
                body += piece
                if len(body) > _MOST_BYTES or time.monotonic() > ends_s:
                    raise Unavailable(f"{url}: more than {_MOST_BYTES} bytes, or {_LIMIT_S:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{url}: {error}") from error
    if response.status_code in (401, 403):
        raise PermissionDenied(
            f"{url}: status {response.status_code}: the pod's account needs a ClusterRole with"
            " `get` of `nodes`"
        )
    if response.status_code == 404:
        raise InvalidArgument.at("node.name", f"the cluster has no node {node!r}")
    if response.status_code != 200:
        raise Unavailable(f"{url}: status {response.status_code}")
    try:
        found = json.loads(body)["metadata"].get("labels", {}).get(label, "")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Unavailable(f"{url}: not a Node: {error}") from error
    return str(found)
