"""An identity provider for tests: it makes keys, publishes the public ones, and signs tokens."""

import json
from functools import cache
from pathlib import Path
from time import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import get_default_algorithms

CURVES = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


def private_key(algorithm: str, name: str = "") -> Any:
    """A private key for an algorithm; another `name` is another key."""
    return _made(algorithm, name)


@cache
def _made(algorithm: str, _name: str) -> Any:
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


def public_jwk(algorithm: str, name: str = "", **members: Any) -> dict[str, Any]:
    """The public key as a JSON Web Key with further members, such as `kid`."""
    return as_jwk(algorithm, private_key(algorithm, name).public_key(), **members)


def as_jwk(algorithm: str, key: Any, **members: Any) -> dict[str, Any]:
    method: Any = get_default_algorithms()[algorithm]
    described: dict[str, Any] = method.to_jwk(key, as_dict=True)
    described.pop("key_ops", None)
    return {**described, **members}


def publish(path: Path, *keys: dict[str, Any]) -> Path:
    """Write a key set, at once as a deployment does."""
    new = path.with_name("new")
    new.write_text(json.dumps({"keys": keys}))
    new.rename(path)
    return path


def claims(**changes: Any) -> dict[str, Any]:
    """Claims that are accepted, with changes; a claim that is None is left out."""
    given = {"sub": "shop", "scope": "read write", "tenant": "*", "exp": time() + 600, **changes}
    return {name: value for name, value in given.items() if value is not None}


def token(
    algorithm: str = "ES256", name: str = "", *, kid: str | None = None, **changes: Any
) -> str:
    """A signed token with `claims(**changes)`."""
    header = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), private_key(algorithm, name), algorithm, header)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
