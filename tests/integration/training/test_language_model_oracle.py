"""A causal language model with LoRA is MOGIC's oracle by the same recipe, and guides a disciple."""

from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest
from safetensors.numpy import load_file

from export.__main__ import app as export
from tests.support.commands import status_of
from tests.support.tiny.training import (
    last_weights,
    losses,
    tiny_dataset,
    train_tiny,
    with_colour_metadata,
    write_recipe,
    write_tiny_checkpoint,
    write_tiny_language_model,
)
from training.__main__ import app as training
from training.checkpoints.saved_state import LAST
from training.datasets import lf_xmc

pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="peft is absent")

ORACLE = (
    "encoder.pooling=last-token",
    "lora.rank=4",
    "lora.dropout=0.1",
    "metadata.append=both",
    "optimizer.learning_rate=3e-3",
    "validation.mixing=[0.5, 1.0]",
    "validation.untrained=false",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model's oracle, and a small BERT that it guides."""
    folder = tmp_path_factory.mktemp("mogic")
    lf_xmc.write(with_colour_metadata(tiny_dataset()), folder / "data")
    write_recipe(folder, model=write_tiny_checkpoint(folder, dropout=0.0), system="ngame")
    model = write_tiny_language_model(folder)
    assert train_tiny(folder, "oracle", f"encoder.name={model}", *ORACLE) == 0
    assert train_tiny(folder, "guided", f"guidance.oracle={folder / 'oracle'}") == 0
    return folder


def test_the_oracle_learns_by_its_adapters_alone(folder: Path) -> None:
    of_steps = losses(folder / "oracle")
    assert of_steps[-1] < 0.8 * of_steps[0]
    learned = [name for name in last_weights(folder / "oracle") if "rotary" not in name]
    assert learned and all("lora_" in name for name in learned)
    moments = load_file(folder / "oracle" / LAST / "optimizer.safetensors")
    assert moments and all("lora_" in name for name in moments)
    facts = orjson.loads((folder / "oracle" / "run.json").read_bytes())
    assert facts["settings"]["lora"]["rank"] == 4
    assert facts["progress"]["best_step"] > 0


def test_its_checkpoint_has_plain_weights_and_its_pooling(folder: Path) -> None:
    best = folder / "oracle" / "best"
    assert not [name for name in load_file(best / "model.safetensors") if "lora" in name]
    pooling = orjson.loads((best / "1_Pooling" / "config.json").read_bytes())
    assert pooling["pooling_mode"] == "lasttoken"
    assert status_of(training, "score", "--run", folder / "oracle", "--data", folder / "data") == 0


def test_it_guides_a_disciple_with_other_weights(folder: Path) -> None:
    assert train_tiny(folder, "alone") == 0
    alone, guided = (losses(folder / name) for name in ("alone", "guided"))
    assert guided[0] > alone[0] + 0.01, "two losses are added to the system's own"
    assert guided[-1] < guided[0]


def test_it_is_not_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = ("--encoder", folder / "oracle" / "best", "--data", folder / "data")
    assert status_of(export, "bundle", *source, "--out", folder / "bundle") == 2
    assert "is an oracle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lora.rank=2", "encoder.frozen=true"], "lora.rank trains the transformer"),
        (["lora.rank=2", "lora.modules=['nothing']"], "its layers are dense, key, query, value"),
        (["encoder.pooling=first"], "encoder.pooling"),
    ],
)
def test_wrong_settings_are_said(
    folder: Path, settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(folder, "wrong", *settings) == 2
    assert message in capsys.readouterr().err
