"""Certificates and a client's token, so that TLS can be measured on both sides of every path."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from services.kit.config import Tls
from services.local.pki import TRUST_DOMAIN, Authority, Identity, settings

_ISSUER, _AUDIENCE, _KEY = "https://issuer.example", "inference", "benchmark"
_HOSTS = ("127.0.0.1", "localhost")
_VALID_S = 86400


@dataclass(frozen=True, slots=True)
class Security:
    """An authority's certificates in a folder, and a token of a client.

    Attributes:
        folder: Of the certificates, and of the public key of tokens.
        token: Bearer token that is valid for a day.
    """

    folder: Path
    token: str

    @classmethod
    def made(cls, folder: Path) -> "Security":
        """Issue certificates for the backend ("planner") and what stands before it ("router")."""
        authority = Authority.made(folder, TRUST_DOMAIN)
        for role in ("planner", "router"):
            authority.issue(Identity(role, hosts=_HOSTS), days=1)
        key = ec.generate_private_key(ec.SECP256R1())
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        keys = {"keys": [{**public, "kid": _KEY, "alg": "ES256", "use": "sig"}]}
        (folder / "jwks.json").write_text(json.dumps(keys))
        claims = {"sub": "load", "iss": _ISSUER, "aud": _AUDIENCE, "exp": time.time() + _VALID_S}
        token = jwt.encode(claims, key, algorithm="ES256", headers={"kid": _KEY})
        return cls(folder, token)

    def tls(self, role: str) -> Tls:
        """Return the files of a role, which requires certificates of its clients."""
        return Tls.model_validate(self._sections()["tls"]).of(role)

    def sections(self) -> dict[str, Any]:
        """Return the sections of a deployment whose router takes the token."""
        made = self._sections()
        tokens = {
            "jwks_file": str(self.folder / "jwks.json"),
            "issuer": _ISSUER,
            "audience": _AUDIENCE,
        }
        made["access"] |= {"tokens": tokens}
        return made

    def files(self, role: str) -> dict[str, Path]:
        """Return certificate, key and authority of a role."""
        tls = self.tls(role)
        assert tls.certificate_file
        assert tls.key_file
        assert tls.ca_file
        return {"certificate": tls.certificate_file, "key": tls.key_file, "ca": tls.ca_file}

    def credentials(self) -> grpc.ChannelCredentials:
        """Return what a client trusts, with its token."""
        trusted = grpc.ssl_channel_credentials((self.folder / "ca.crt").read_bytes())
        return grpc.composite_channel_credentials(
            trusted, grpc.access_token_call_credentials(self.token)
        )

    def _sections(self) -> dict[str, Any]:
        made: dict[str, Any] = yaml.safe_load(settings(self.folder, TRUST_DOMAIN))
        return made
