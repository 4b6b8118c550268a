"""Encoding in parts: no part is encoded twice, and no vector of other texts is reused."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export.bundle import encode as resumable
from export.bundle.encode import encode_resumably
from service.core.encoding.encoder import encode
from service.core.types import Role
from tests.support.tiny.encoder import TrigramEncoder

TEXTS = [f"{'long ' * (number % 3)}text {number}" for number in range(10)]
STEP = 4


class PowerCut(Exception):
    """Simulates a process that ends during encoding."""


class Interrupted(TrigramEncoder):
    """Raises `PowerCut` after `after` encoded texts."""

    def __init__(self, after: int, **facts: str) -> None:
        super().__init__(**facts)
        self.after = after

    def embed(self, tokens: list[list[int]], *, together: bool = False) -> np.ndarray:
        if self.encoded >= self.after:
            raise PowerCut
        return super().embed(tokens, together=together)


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable, "_PART_TEXTS", STEP)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., np.ndarray]:
    def run(
        encoder: TrigramEncoder,
        texts: Sequence[str] = TEXTS,
        *,
        role: Role = Role.QUERY,
        progress: Callable[[int], None] = lambda done: None,
    ) -> np.ndarray:
        work = tmp_path / "work"
        return encode_resumably(encoder, texts, role=role, work=work, threads=2, progress=progress)

    return run


def expected(encoder: TrigramEncoder, texts: Sequence[str] = TEXTS) -> np.ndarray:
    return encode(encoder, texts, role=Role.QUERY).astype(np.float16)


def test_vectors_are_in_the_order_of_their_texts(run: Callable[..., np.ndarray]) -> None:
    done: list[int] = []
    vectors = run(TrigramEncoder(), progress=done.append)
    assert vectors.dtype == np.float16
    assert np.array_equal(vectors, expected(TrigramEncoder()))
    assert list(dict.fromkeys(done)) == [0, 4, 8, 10]


@settings(max_examples=30)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=12))
def test_equal_texts_are_encoded_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    encoder, work = TrigramEncoder(), tmp_path_factory.mktemp("work")
    vectors = encode_resumably(
        encoder, texts, role=Role.QUERY, work=work, threads=1, progress=lambda done: None
    )
    assert encoder.encoded == len(set(texts))
    assert np.array_equal(vectors, expected(TrigramEncoder(), texts))


def test_an_interruption_loses_only_the_unfinished_part(
    run: Callable[..., np.ndarray],
) -> None:
    with pytest.raises(PowerCut):
        run(Interrupted(after=2 * STEP))
    encoder, done = TrigramEncoder(), []
    vectors = run(encoder, progress=done.append)
    assert encoder.encoded == len(TEXTS) - 2 * STEP
    assert list(dict.fromkeys(done)) == [8, 10]
    assert np.array_equal(vectors, expected(TrigramEncoder()))


@pytest.mark.parametrize(
    ("fingerprint", "texts", "role", "encoded"),
    [
        ("trigrams", TEXTS, Role.QUERY, 0),
        ("trigrams", TEXTS[::-1], Role.QUERY, 0),
        ("another", TEXTS, Role.QUERY, 10),
        ("trigrams", TEXTS, Role.LABEL, 10),
        ("trigrams", [*TEXTS[1:], "another text"], Role.QUERY, 8),  # the last part has the same
        ("trigrams", TEXTS[1:], Role.QUERY, 9),
    ],
)
def test_finished_parts_are_encoded_again_only_for_another_encoder_role_or_text(
    run: Callable[..., np.ndarray], fingerprint: str, texts: list[str], role: Role, encoded: int
) -> None:
    run(TrigramEncoder())
    encoder = TrigramEncoder(fingerprint=fingerprint)
    vectors = run(encoder, texts, role=role)
    assert encoder.encoded == encoded
    assert np.array_equal(vectors, expected(TrigramEncoder(), texts))


def test_parts_of_another_encoder_are_no_parts(run: Callable[..., np.ndarray]) -> None:
    """Encoder a finishes two parts; b replaces the first and is interrupted; then a runs again."""
    with pytest.raises(PowerCut):
        run(Interrupted(after=2 * STEP, fingerprint="a"))
    with pytest.raises(PowerCut):
        run(Interrupted(after=STEP, fingerprint="b"))
    encoder = TrigramEncoder(fingerprint="a")
    assert np.array_equal(run(encoder), expected(TrigramEncoder()))
    assert encoder.encoded == len(TEXTS)


@pytest.mark.parametrize("damaged", ["vectors.npy", "part.json"])
def test_a_damaged_part_is_encoded_again(
    run: Callable[..., np.ndarray], tmp_path: Path, damaged: str
) -> None:
    run(TrigramEncoder())
    (tmp_path / "work/2-of-3" / damaged).write_bytes(b"")
    encoder = TrigramEncoder()
    assert np.array_equal(run(encoder), expected(TrigramEncoder()))
    assert encoder.encoded == STEP


class Uncased(TrigramEncoder):
    """Ignores case, like the tokenizers of many encoders."""

    def tokenize(self, texts: Sequence[str], *, role: Role) -> list[list[int]]:
        return super().tokenize([text.lower() for text in texts], role=role)


def test_texts_of_equal_tokens_are_encoded_once(run: Callable[..., np.ndarray]) -> None:
    encoder, done = Uncased(), []
    vectors = run(encoder, ["Tent", "boot", "tent", "TENT"], progress=done.append)
    assert encoder.encoded == 2
    assert list(dict.fromkeys(done)) == [2, 4]
    assert np.array_equal(vectors, expected(TrigramEncoder(), ["tent", "boot", "tent", "tent"]))
