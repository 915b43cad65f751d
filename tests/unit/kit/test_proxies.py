"""Proxies of the environment: which calls go through which."""

import pytest

from services.kit import proxies
from services.kit.errors import FailedPrecondition

NAMES = [
    name
    for each in (*proxies.VARIABLES, "no_proxy", "no_grpc_proxy")
    for name in (each, each.upper())
]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of this machine's."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "url", "variable"),
    [
        ({"https_proxy": "http://p:1"}, "https://models.example/a.onnx", "https_proxy"),
        ({"HTTPS_PROXY": "http://p:1"}, "https://models.example/a.onnx", "HTTPS_PROXY"),
        ({"http_proxy": "http://p:1"}, "https://models.example/a.onnx", ""),
        ({"http_proxy": "http://p:1"}, "http://models.example:8080/", "http_proxy"),
        ({"all_proxy": "http://p:1"}, "https://models.example/", "all_proxy"),
        ({"all_proxy": "http://p:1", "https_proxy": "p:2"}, "https://a.example/", "https_proxy"),
        ({"all_proxy": "http://p:1", "no_proxy": ".example"}, "https://models.example/", ""),
        ({"all_proxy": "http://p:1", "NO_PROXY": "*"}, "https://models.example/", ""),
        ({"all_proxy": "http://p:1"}, "http://127.0.0.1:9/", ""),
        ({"all_proxy": "http://p:1"}, "http://localhost:9/", ""),
        ({"all_proxy": "http://p:1"}, "http://[::1]:9/", ""),
        ({"grpc_proxy": "http://p:1"}, "grpc://triton.example:8001", "grpc_proxy"),
        ({"http_proxy": "http://p:1"}, "grpc://triton.example:8001", "http_proxy"),
        ({"all_proxy": "http://p:1"}, "grpc://triton.example:8001", ""),
        (
            {"grpc_proxy": "http://p:1", "no_grpc_proxy": "triton.example"},
            "grpc://triton.example",
            "",
        ),
        ({"grpc_proxy": "http://p:1"}, "https://models.example/", ""),
        ({"grpc_proxy": "http://p:1"}, "grpc://127.0.0.1:8001", ""),
    ],
)
def test_a_call_goes_through_the_proxy_of_its_scheme_unless_its_host_is_excepted(
    given: dict[str, str], url: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine is never called through a proxy, whether or not `no_proxy` names it."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    assert proxies.variable_for(url) == variable
    assert (proxies.proxy_for(url) or "").startswith("http://" if variable else "")
    assert (variable in proxies.note(url)) if variable else (proxies.note(url) == "")


def test_a_proxy_that_is_not_http_is_refused_by_its_variable_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://user:s3cret@10.0.0.1:1080")

    with pytest.raises(FailedPrecondition, match="ALL_PROXY") as refused:
        proxies.proxy_for("https://models.example/")

    assert "s3cret" not in refused.value.message
