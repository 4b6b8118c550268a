"""JSON Web Tokens: clients that an identity provider names, next to API keys.

The provider signs a token with its private key. `KEYMATCH_JWKS` names a file with the public keys,
a JSON Web Key Set (RFC 7517). These claims of a token count:

| claim                 | meaning                                                              |
|-----------------------|----------------------------------------------------------------------|
| `exp`                 | when the token expires; required                                     |
| `nbf`, `iat`          | the token is not valid before                                        |
| `aud`, `iss`          | must match `token_audience` and `token_issuer`, if these are set     |
| `sub`, or `client_id` | the client's name; required                                          |
| `scope`, or `scp`     | scopes, as in the keys file; others are ignored                      |
| `tenant`              | `FIELD=VALUE`, or `*` for the labels of all tenants; required        |

A forgotten `tenant` must not open the labels of all tenants, so there is no default.

The key alone determines the algorithm. If the token's header did, an attacker could sign with a
public key's text as the secret of HS256, or not at all (`none`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from time import time
from typing import Any

import orjson
from cachetools import LRUCache

from service.core.errors import InvalidConfig, InvalidInput, InvalidToken, MissingExtra
from service.core.tenant import Tenant
from service.http.access import SCOPES, TENANT_SCOPES, ApiKey, FollowedFile
from service.settings import ServerSettings

try:
    import cryptography  # noqa: F401  # without it PyJWT has only algorithms with a shared secret
    import jwt
except ImportError as error:
    raise MissingExtra("PyJWT with cryptography", extra="jwt") from error

# Algorithms with a public key. RSA keys without `alg` are used with RS256.
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
SECRET_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})  # of a JSON Web Key
EVERYTHING = "*"  # the claim `tenant` of a token that is not restricted to a tenant
LEEWAY_SECONDS = 30  # that the provider's clock and this one may differ
MOST_BYTES = 8_192  # of a token; decoding longer ones would block other requests
MOST_CHARACTERS = 255  # of a claim
MOST_REMEMBERED = 1_024  # verified tokens

# The first row whose class fits PyJWT's exception decides.
_REFUSALS: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, "this token has expired: get a new one"),
    (jwt.ImmatureSignatureError, "this token is not valid yet"),
    (jwt.InvalidSignatureError, "this token's signature is wrong"),
    (jwt.InvalidAlgorithmError, "this token is not signed with the algorithm of its key"),
    (jwt.InvalidAudienceError, "this token is for another audience"),
    (jwt.InvalidIssuerError, "this token is from another issuer"),
    (jwt.PyJWTError, "this is neither a known API key nor a valid JSON Web Token"),
)

KeySet = Mapping[str | None, jwt.PyJWK]  # by `kid`, which a single key may lack


class Tokens:
    """Verifies tokens with the keys of a file, which is read again when it changes."""

    def __init__(self, path: Path, *, audience: str | None, issuer: str | None) -> None:
        """Name the file, which `read` or `look` reads. An `audience` or `issuer` of None is any."""
        self._path, self._audience, self._issuer = path, audience, issuer
        self._file = FollowedFile[KeySet](path, read_key_set, empty={})
        # By the token's hash: when it expires, its client, and the keys that verified it, since the
        # one that it is signed with may be gone.
        self._verified: LRUCache[str, tuple[int, ApiKey, KeySet]] = LRUCache(MOST_REMEMBERED)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the keys, which cannot be pickled: a worker process reads the file itself.

        If the file is broken by then, the worker accepts no token until it is repaired: keys of the
        start may have been revoked since.
        """
        return partial(Tokens, self._path, audience=self._audience, issuer=self._issuer), ()

    def read(self) -> None:
        """Read the keys if the file has changed. Raises `InvalidConfig`, and then keeps the old."""
        self._file.read()

    def look(self) -> KeySet:
        """Return the present keys; an error of the file is logged."""
        return self._file.look()

    def check(self, token: bytes, digest: str) -> ApiKey:
        """Return the client that a token names; `digest` identifies the token.

        Raises `InvalidToken`, whose message says what is wrong and never repeats the token.
        """
        keys = self.look()
        expires, client, verified_by = self._verified.get(digest, (0, None, None))
        if client is not None and verified_by is keys and expires > time() - LEEWAY_SECONDS:
            return client
        try:
            claims = self._claims(token, keys)
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"this token lacks the claim {error.claim!r}") from None
        except jwt.PyJWTError as error:
            raise InvalidToken(
                next(said for kind, said in _REFUSALS if isinstance(error, kind))
            ) from None
        client = _client(claims)
        self._verified[digest] = int(claims["exp"]), client, keys
        return client

    def _claims(self, token: bytes, keys: KeySet) -> dict[str, Any]:
        if len(token) > MOST_BYTES:
            raise InvalidToken(f"this token has more than {MOST_BYTES} bytes")
        kid = jwt.get_unverified_header(token).get("kid")
        # A token that names no key can only mean the only key.
        key = next(iter(keys.values()), None) if kid is None else keys.get(kid)
        if key is None or (kid is None and len(keys) > 1):
            raise InvalidToken("this token is signed with an unknown key")
        return jwt.decode(
            token,
            key,
            algorithms=[key.algorithm_name],
            options={
                "require": ["exp"],
                "verify_aud": self._audience is not None,
                "verify_iss": self._issuer is not None,
            },
            audience=self._audience,
            issuer=self._issuer,
            leeway=LEEWAY_SECONDS,
        )


def read_tokens(path: Path, server: ServerSettings) -> Tokens:
    """Read a key set file. Raises `InvalidConfig`, naming the file and the key."""
    tokens = Tokens(path, audience=server.token_audience, issuer=server.token_issuer)
    tokens.read()
    return tokens


def read_key_set(path: Path) -> KeySet:
    """Return the usable keys of a file. Raises `InvalidConfig`, which never quotes the content.

    Keys for encryption and of unknown types are ignored, as RFC 7517 asks.
    """
    try:
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidConfig(f"key set {path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidConfig(f"key set {path} is not JSON: {error.msg}") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise InvalidConfig(f'key set {path}: expected {{"keys": [...]}}, a JSON Web Key Set')
    keys: dict[str | None, jwt.PyJWK] = {}
    for number, jwk in enumerate(listed):
        where = f"key set {path}: keys.{number}"
        key = _usable(jwk, where)
        if key is None:
            continue
        if key.key_id in keys:
            raise InvalidConfig(f"{where} has the 'kid' of another key, or both have none")
        keys[key.key_id] = key
    if not keys:
        raise InvalidConfig(
            f"key set {path} holds no usable key: it needs a public key for one of"
            f" {', '.join(ALGORITHMS)}"
        )
    return keys


def _usable(jwk: Any, where: str) -> jwt.PyJWK | None:
    if not isinstance(jwk, dict) or not isinstance(jwk.get("kid", ""), str):
        raise InvalidConfig(f"{where} is no JSON Web Key")
    if SECRET_MEMBERS & jwk.keys():
        raise InvalidConfig(
            f"{where} is a private or secret key: the file may hold public keys only. Replace this"
            " key, since others may have read it"
        )
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    if jwk.get("use", "sig") != "sig" or jwk.get("alg", ALGORITHMS[0]) not in ALGORITHMS:
        return None
    try:
        key = jwt.PyJWK(jwk)
        key.Algorithm.prepare_key(key.key)  # raises if an elliptic curve is not the algorithm's
    except jwt.PyJWTError:
        return None
    if key.algorithm_name not in ALGORITHMS:  # derived from the type, as for secp256k1
        return None
    if key.Algorithm.check_key_length(key.key) is not None:
        raise InvalidConfig(f"{where} is too short to be safe: RSA keys need 2,048 bits")
    return key


def _client(claims: Mapping[str, Any]) -> ApiKey:
    """Return the client that verified claims name; raises `InvalidToken`."""
    subject = _text(claims, "sub" if "sub" in claims else "client_id")
    if subject is None:
        raise InvalidToken("this token lacks the claim 'sub', the client's name")
    # The label log stores idempotency keys with the name; a hash names nobody.
    name = hashlib.sha256(subject.encode()).hexdigest()
    scopes = frozenset(_scopes(claims)) & frozenset(SCOPES)
    place = _text(claims, "tenant")
    if place is None:
        raise InvalidToken(
            "this token lacks the claim 'tenant': FIELD=VALUE, or '*' for the labels of all tenants"
        )
    if place == EVERYTHING:
        return ApiKey(name=name, scopes=scopes)
    try:
        tenant = Tenant.parse(place)
    except InvalidInput:
        raise InvalidToken("this token's claim 'tenant' is neither FIELD=VALUE nor '*'") from None
    further = sorted(scopes.difference(TENANT_SCOPES))
    if further:
        raise InvalidToken(
            f"a tenant's token has the scopes {' and '.join(TENANT_SCOPES)} at most, not"
            f" {further[0]}"
        )
    return ApiKey(name=name, scopes=scopes, tenant=tenant)


def _scopes(claims: Mapping[str, Any]) -> Iterable[str]:
    """Return the scopes in `scope` or `scp`; providers write either as text or as a list."""
    given = claims.get("scope", claims.get("scp", ""))
    if isinstance(given, str):
        return given.split(" ")
    if isinstance(given, list) and all(isinstance(scope, str) for scope in given):
        return given
    raise InvalidToken("this token's scopes are neither text nor a list of texts")


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    """Return a claim, or None without it. It must suit the label log: printable, not too long."""
    value = claims.get(name)
    if value is None:
        return None
    if not (isinstance(value, str) and 0 < len(value) <= MOST_CHARACTERS and value.isprintable()):
        raise InvalidToken(
            f"this token's claim {name!r} is not 1 to {MOST_CHARACTERS} printable characters"
        )
    return value
