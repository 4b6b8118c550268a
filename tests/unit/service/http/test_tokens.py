"""JSON Web Tokens: which are admitted, as whom, and which key sets are read."""

import base64
import hashlib
import hmac
import json
import logging
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cli.serve import serve
from service.core.errors import Forbidden, InvalidConfig, InvalidToken, KeymatchError, MissingExtra
from service.core.tenant import Tenant
from service.http import access as following
from service.http import tokens as module
from service.http.access import Access, ApiKey, Sites, require_keys
from service.http.tokens import ALGORITHMS, MOST_BYTES, MOST_REMEMBERED, read_tokens
from service.settings import ServerSettings
from tests.support.http.provider import as_jwk, claims, private_key, public_jwk, publish, token

ANY = ServerSettings()
Admit = Callable[..., ApiKey]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return publish(tmp_path / "jwks.json", public_jwk("ES256"))


def access(path: Path, server: ServerSettings = ANY) -> Access:
    return Access(tokens=read_tokens(path, server))


def admitted(access: Access, token: str | bytes, scope: str = "read") -> ApiKey:
    sent = token if isinstance(token, bytes) else token.encode()
    return access.check(b"Bearer " + sent, scope)


def refusal(access: Access, token: str | bytes) -> str:
    """Return why a token is refused; the answer never repeats it."""
    with pytest.raises(InvalidToken) as refused:
        admitted(access, token)
    said = str(refused.value)
    sent = token if isinstance(token, str) else token.decode("latin-1")
    assert not any(part in said for part in sent.split(".") if len(part) > 8)
    return said


def segment(content: Any) -> str:
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(encoded).rstrip(b"=").decode()


def signed(payload: bytes) -> str:
    """A token with a right signature of any payload."""
    return jwt.api_jws.encode(payload, private_key("ES256"), "ES256")


# What is admitted -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_verified_and_needs_its_own_key(tmp_path: Path, algorithm: str) -> None:
    known = access(publish(tmp_path / "keys", public_jwk(algorithm, alg=algorithm)))
    for _ in range(2):  # the second one is remembered
        assert "shop" not in admitted(known, token(algorithm)).name
    assert refusal(known, token(algorithm, "another")) == "this token's signature is wrong"


def test_a_token_names_its_client_scopes_and_tenant(file: Path) -> None:
    known = access(file)
    one = admitted(known, token(tenant="advertiser=a=b:c", scope="openid read"))
    assert (one.tenant, one.scopes) == (Tenant("advertiser", "a=b:c"), {"read"})
    with pytest.raises(Forbidden, match="this token lacks the scope 'write'"):
        admitted(known, token(scope="openid read"), "write")
    everything = admitted(known, token(scope="admin metrics"), "admin")
    assert (everything.tenant, everything.scopes) == (None, {"admin", "metrics"})
    for scopes in ({"scp": ["write", "read"]}, {"scp": "read write"}, {"scope": ["read", "write"]}):
        assert admitted(known, token(**{"scope": None, **scopes})).scopes == {"read", "write"}


def test_clients_are_told_apart_by_subject_and_tenant(file: Path) -> None:
    known = access(file)
    tokens = [
        *(token(sub=name) for name in ("shop", "shop@brand=a", "shop:a", "é")),
        token(sub="shop", tenant="brand=a"),
        token(sub="shop", tenant="brand=b"),
    ]
    assert len({admitted(known, one).client for one in tokens}) == len(tokens)
    assert admitted(known, token(sub=None, client_id="shop")) == admitted(known, token())


def test_the_key_id_chooses_the_key_and_only_one_key_needs_none(tmp_path: Path) -> None:
    keys = [public_jwk("ES256", name, kid=name) for name in ("a", "b")]
    one = access(publish(tmp_path / "one", keys[0]))
    both = access(publish(tmp_path / "both", *keys))
    for known in (one, both):
        admitted(known, token(name="a", kid="a"))
        assert "unknown key" in refusal(known, token(name="a", kid="c"))
    admitted(one, token(name="a"))
    admitted(both, token(name="b", kid="b"))
    assert "unknown key" in refusal(both, token(name="a"))
    assert "signature is wrong" in refusal(both, token(name="a", kid="b"))


def test_api_keys_and_tokens_are_admitted_side_by_side(file: Path) -> None:
    digest = hashlib.sha256(b"a.b.c").hexdigest()
    key = ApiKey(name="shop", scopes=frozenset({"read"}), digest=digest)
    both = Access(keys=(key,), tokens=read_tokens(file, ANY))
    assert admitted(both, "a.b.c") is key
    assert admitted(both, token()).digest == ""
    assert "neither a known API key nor" in refusal(both, "another")


def test_tokens_alone_count_as_keys(file: Path) -> None:
    public = ServerSettings(host="0.0.0.0", metrics_need_key=True)
    require_keys(public, access(file))
    scope = {"headers": [(b"host", b"any.example")], "http_version": "1.1", "method": "POST"}
    assert Sites(public, access(file)).refusal(scope) is None
    for setting in ("token_audience", "token_issuer"):
        with pytest.raises(InvalidConfig, match="name a JSON Web Key Set in KEYMATCH_JWKS"):
            require_keys(ServerSettings(**{setting: "x"}), Access())


# What is refused ------------------------------------------------------------------------------

FAR = 4_102_444_800
TIMES = "a valid JSON Web Token"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exp": None}, "lacks the claim 'exp'"),
        ({"exp": 1}, "has expired"),
        ({"exp": "soon"}, TIMES),
        ({"exp": [1]}, TIMES),
        ({"nbf": FAR}, "not valid yet"),
        ({"nbf": {}}, TIMES),
        ({"iat": FAR}, "not valid yet"),
        ({"iat": "then"}, TIMES),
        ({"sub": None}, "lacks the claim 'sub'"),
        ({"sub": ""}, "claim 'sub' is not 1 to 255 printable"),
        ({"sub": "a\0b"}, "claim 'sub' is not 1 to 255 printable"),
        ({"sub": "\ud800"}, "claim 'sub' is not 1 to 255 printable"),
        ({"sub": "x" * 256}, "claim 'sub' is not 1 to 255 printable"),
        ({"sub": None, "client_id": 7}, "claim 'client_id' is not 1 to 255 printable"),
        ({"scope": 7}, "scopes are neither text nor a list"),
        ({"scope": ["read", ["write"]]}, "scopes are neither text nor a list"),
        ({"tenant": None}, "lacks the claim 'tenant'"),
        ({"tenant": ""}, "claim 'tenant' is not 1 to 255 printable"),
        ({"tenant": ["*"]}, "claim 'tenant' is not 1 to 255 printable"),
        ({"tenant": "**"}, "claim 'tenant' is neither FIELD=VALUE nor '*'"),
        ({"tenant": "brand="}, "claim 'tenant' is neither FIELD=VALUE nor '*'"),
        ({"tenant": "brand=a", "scope": "read admin"}, "read and write at most, not admin"),
        ({"tenant": "brand=a", "scope": "metrics"}, "read and write at most, not metrics"),
    ],
)
def test_wrong_claims_are_refused(file: Path, changes: dict[str, Any], said: str) -> None:
    changed = {"exp": time() + 600, **changes}
    payload = json.dumps(claims(**changed)).encode()
    assert said in refusal(access(file), signed(payload))


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"[]", b"null", b"{", b"\xff", b"[" * 4_000, b'{"exp": 1e999, "sub": "a"}',
        b'{"exp": NaN}', b'{"exp": ' + b"9" * 5_000 + b"}",
    ],
)  # fmt: skip
def test_a_signed_payload_that_is_no_claims_is_refused(file: Path, payload: bytes) -> None:
    assert "nor a valid JSON Web Token" in refusal(access(file), signed(payload))


def test_the_clocks_may_differ_a_little(file: Path) -> None:
    known = access(file)
    for changes in ({"exp": time() - 20}, {"nbf": time() + 20}, {"iat": time() + 20}):
        admitted(known, token(**changes))
    for changes in ({"exp": time() - 40}, {"nbf": time() + 40}, {"iat": time() + 40}):
        refusal(known, token(**changes))


def test_audience_and_issuer_must_match_if_they_are_set(file: Path) -> None:
    admitted(access(file), token(aud="other", iss="other"))
    known = access(file, ServerSettings(token_audience="keymatch", token_issuer="https://id"))
    right = {"aud": ["other", "keymatch"], "iss": "https://id"}
    admitted(known, token(**right))
    assert "another audience" in refusal(known, token(**{**right, "aud": "other"}))
    assert "another audience" in refusal(known, token(**{**right, "aud": {"keymatch": 1}}))
    assert "lacks the claim 'aud'" in refusal(known, token(**{**right, "aud": None}))
    assert "another issuer" in refusal(known, token(**{**right, "iss": "https://id.evil"}))
    assert "another issuer" in refusal(known, token(**{**right, "iss": "https"}))
    assert "lacks the claim 'iss'" in refusal(known, token(**{**right, "iss": None}))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_the_tokens_header_never_chooses_the_algorithm(tmp_path: Path, algorithm: str) -> None:
    public = private_key(algorithm).public_key()
    path = publish(tmp_path / "keys", public_jwk(algorithm))
    known = access(path)
    payload = segment(claims())
    for none in ("none", "None", "NONE", "", None):
        unsigned = f"{segment({'alg': none, 'typ': 'JWT'})}.{payload}."
        assert "algorithm of its key" in refusal(known, unsigned)
    public_texts = (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        path.read_bytes(),
    )
    for secret in public_texts:
        signing = f"{segment({'alg': 'HS256'})}.{payload}"
        mac = hmac.new(secret, signing.encode(), hashlib.sha256).digest()
        assert "algorithm of its key" in refusal(known, f"{signing}.{segment(mac)}")
    other = {"RS256": "PS256", "ES256": "EdDSA"}[algorithm]
    assert "algorithm of its key" in refusal(known, token(other))
    # A header may bring a key of its own, or name one elsewhere; neither is used.
    brought = {"jwk": public_jwk(algorithm, "evil"), "jku": "https://evil", "x5u": "https://evil"}
    evil = jwt.encode(claims(), private_key(algorithm, "evil"), algorithm, brought)
    assert "signature is wrong" in refusal(known, evil)


def test_malformed_tokens_are_refused(file: Path) -> None:
    known = access(file)
    header, payload, signature = token().split(".")
    for wrong in (
        "a", "a.b", "a.b.c", "..", "....", f"{header}.{payload}", f"{header}..{signature}",
        f"{header}.{payload}.{signature}.{signature}", f"{header}.{payload}.{signature[:-2]}",
        f"{header}.{payload}.", f" {header} . {payload}.{signature}", b"\xff\x00.\xfe.\xfd",
        f"{segment(b'[' * 4_000)}.{payload}.{signature}",
        f"{segment([])}.{payload}.{signature}", f"{segment(b'NaN')}.{payload}.{signature}",
        f"{segment({'alg': 'ES256', 'kid': 5})}.{payload}.{signature}",
        f"{segment({'alg': ['ES256']})}.{payload}.{signature}",
        f"{segment({'alg': 'ES256', 'crit': ['exp'], 'exp': 1})}.{payload}.{signature}",
        f"{segment({'alg': 'ES256', 'crit': ['b64'], 'b64': False})}..{signature}",
    ):  # fmt: skip
        refusal(known, wrong)
    changed = segment({**claims(), "sub": "owner"})
    assert "signature is wrong" in refusal(known, f"{header}.{changed}.{signature}")
    assert "bytes" in refusal(known, f"{header}.{payload}.{'A' * MOST_BYTES}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Access:
    return access(publish(tmp_path_factory.mktemp("shared") / "keys", public_jwk("ES256")))


@pytest.fixture(scope="module")
def good() -> bytes:
    return token().encode()


TOKEN_LIKE = st.one_of(
    st.binary(max_size=200),
    st.lists(st.binary(max_size=60).map(lambda raw: segment(raw).encode()), max_size=5).map(
        b".".join
    ),
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("ES256"),
            lambda inner: st.lists(inner, max_size=3),
        ),
    ).map(lambda header: f"{segment(header)}.{segment({})}.{segment(b'x' * 64)}".encode()),
)


@settings(max_examples=200)
@given(sent=TOKEN_LIKE, cut=st.integers(0, 300), noise=st.binary(max_size=3))
def test_no_header_value_is_a_defect(
    shared: Access, good: bytes, sent: bytes, cut: int, noise: bytes
) -> None:
    changed = good[:cut] + noise + good[cut + 1 :]
    for value in (b"Bearer " + sent, sent, b"Bearer " + changed):
        try:
            client = shared.check(value, "read")
        except KeymatchError:
            continue
        # The noise was the byte that it replaced, white space or padding.
        assert changed.strip().rstrip(b"=") == good
        assert client.name == hashlib.sha256(b"shop").hexdigest()


@given(
    st.dictionaries(
        st.sampled_from(["exp", "nbf", "iat", "sub", "client_id", "scope", "scp", "tenant", "jti"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        ),
    )
)
def test_no_signed_claims_are_a_defect(shared: Access, changes: dict[str, Any]) -> None:
    payload = json.dumps({**claims(), **changes}).encode()
    try:
        shared.check(b"Bearer " + signed(payload).encode(), "read")
    except KeymatchError as refused:
        assert isinstance(refused, InvalidToken | Forbidden)


# What is remembered ---------------------------------------------------------------------------


def test_a_remembered_token_is_not_verified_again_but_expires(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = access(file)
    sent = token(exp=time() + 5)
    first = admitted(known, sent)
    with monkeypatch.context() as patch:
        patch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("verified again"))
        assert admitted(known, sent) is first

    def expired(*_: Any, **__: Any) -> None:
        raise jwt.ExpiredSignatureError

    monkeypatch.setattr(module, "time", lambda: time() + 60)
    monkeypatch.setattr(jwt, "decode", expired)
    assert "has expired" in refusal(known, sent)


def test_more_tokens_than_are_remembered_are_admitted(file: Path) -> None:
    tokens = read_tokens(file, ANY)
    sent = token().encode()
    for number in range(MOST_REMEMBERED + 10):
        tokens.check(sent, str(number))
    assert len(tokens._verified) == MOST_REMEMBERED


# The file -------------------------------------------------------------------------------------


def test_a_changed_file_is_read_within_a_second(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr(following, "monotonic", lambda: clock[0])
    known, old, new = access(file), token(), token(name="new")
    admitted(known, old)
    publish(file, public_jwk("ES256", "new"))
    admitted(known, old)  # no look at the file within the second
    clock[0] += 1.0
    admitted(known, new)
    assert "signature is wrong" in refusal(known, old)  # even though it was remembered

    for broken in (file.write_text, lambda _text: file.unlink()):
        caplog.clear()
        broken('{"keys": [')
        with caplog.at_level(logging.ERROR, "keymatch"):
            for _ in range(5):
                clock[0] += 1.0
                admitted(known, new)
        [record] = caplog.records
        assert str(file) in record.cause  # type: ignore[attr-defined]
    publish(file, public_jwk("ES256"))
    clock[0] += 1.0
    admitted(known, old)


def test_another_process_reads_the_file_itself(file: Path) -> None:
    known = access(file, ServerSettings(token_audience="keymatch"))
    admitted(known, token(aud="keymatch"))
    copy = pickle.loads(pickle.dumps(known))
    admitted(copy, token(aud="keymatch"))
    assert "another audience" in refusal(copy, token(aud="other"))
    late = pickle.loads(pickle.dumps(known))
    file.write_text("{")
    assert "unknown key" in refusal(late, token(aud="keymatch"))
    admitted(known, token(aud="keymatch"))


def test_a_key_set_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    good = public_jwk("ES256", kid="a")
    rsa_key = rsa.generate_private_key(public_exponent=65_537, key_size=1_024).public_key()
    for content, said in (
        ("{", "is not JSON"),
        ("", "is not JSON"),
        (b"\xff", "is not JSON"),
        (private_key("RS256").public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "is not JSON"),
        ("[]", "a JSON Web Key Set"),
        (good, "a JSON Web Key Set"),
        ({"keys": {}}, "a JSON Web Key Set"),
        ({"keys": []}, "holds no usable key"),
        ({"keys": [{"kty": "XYZ"}]}, "holds no usable key"),
        ({"keys": [{**good, "use": "enc"}]}, "holds no usable key"),
        ({"keys": [{**good, "key_ops": ["sign"]}]}, "holds no usable key"),
        ({"keys": [{**good, "key_ops": 5}]}, "holds no usable key"),
        ({"keys": [{**good, "alg": "ES384"}]}, "holds no usable key"),
        ({"keys": [{**good, "alg": "HS256"}]}, "holds no usable key"),
        ({"keys": [{**good, "alg": "none"}]}, "holds no usable key"),
        ({"keys": [{**good, "alg": []}]}, "holds no usable key"),
        ({"keys": [{**good, "x": 5}]}, "holds no usable key"),
        ({"keys": [{**good, "x": good["y"]}]}, "holds no usable key"),
        ({"keys": [5]}, "keys.0 is no JSON Web Key"),
        ({"keys": [{**good, "kid": 5}]}, "keys.0 is no JSON Web Key"),
        ({"keys": [good, good]}, "keys.1 has the 'kid' of another key"),
        ({"keys": [public_jwk("ES256"), public_jwk("ES256", "b")]}, "keys.1 has the 'kid'"),
        ({"keys": [as_jwk("RS256", rsa_key)]}, "keys.0 is too short"),
        ({"keys": [good, {"kty": "oct", "k": "c2VjcmV0"}]}, "keys.1 is a private or secret key"),
    ):  # fmt: skip
        path.write_bytes(
            content if isinstance(content, bytes)
            else (content if isinstance(content, str) else json.dumps(content)).encode()
        )  # fmt: skip
        with pytest.raises(InvalidConfig) as objection:
            read_tokens(path, ANY)
        assert str(objection.value).startswith(f"key set {path}"), content
        assert said in str(objection.value), content
        assert good["x"] not in str(objection.value)
    path.unlink()
    with pytest.raises(InvalidConfig, match="cannot be read: No such file"):
        read_tokens(path, ANY)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_private_key_is_refused_and_never_quoted(tmp_path: Path, algorithm: str) -> None:
    secret = as_jwk(algorithm, private_key(algorithm))
    path = publish(tmp_path / "keys", public_jwk("ES256", kid="a"), secret)
    with pytest.raises(InvalidConfig, match=r"keys\.1 is a private or secret key") as objection:
        read_tokens(path, ANY)
    assert secret["d"] not in str(objection.value)


def test_keys_that_cannot_verify_tokens_are_ignored(tmp_path: Path) -> None:
    bitcoin = ec.generate_private_key(ec.SECP256K1()).public_key()
    keys = (
        public_jwk("RS256", kid="a", use="enc", alg="RSA-OAEP"),
        as_jwk("ES256K", bitcoin, kid="b"),
        {"kty": "AKP", "kid": "c"},
        public_jwk("ES256", kid="d", use="sig", key_ops=["verify"], x5t="x"),
    )
    known = access(publish(tmp_path / "keys", *keys))
    admitted(known, token(kid="d"))
    assert "unknown key" in refusal(known, token("RS256", kid="a"))


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.just("EC") | st.just("RSA"),
    lambda inner: st.lists(inner, max_size=3),
)
MEMBERS = ["kty", "crv", "alg", "x", "y", "n", "e", "kid", "use", "key_ops"]


@given(st.sampled_from(["ES256", "RS256", "EdDSA"]),
       st.dictionaries(st.sampled_from(MEMBERS), JSON_VALUES, max_size=3))  # fmt: skip
def test_no_key_is_a_defect(algorithm: str, changes: dict[str, Any]) -> None:
    try:
        module._usable({**public_jwk(algorithm), **changes}, "here")
    except InvalidConfig as refused:
        assert str(refused).startswith("here ")


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_without_the_packages_the_extra_is_named(
    missing: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "service.http.tokens")
    monkeypatch.setitem(sys.modules, missing, None)  # makes its import fail
    monkeypatch.setenv("KEYMATCH_JWKS", os.fspath(file))
    with pytest.raises(MissingExtra, match=r"pip install '\.\[jwt\]'"):
        serve(bundle=file.parent, state="nowhere")
