"""The model card of an exported encoder: what it is, how it was trained, its quality."""

from __future__ import annotations

from pathlib import Path

from export.encoder_json import Description, Origin
from export.exported_encoder import CARD

SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@5", "R@10", "R@100")


def write(description: Description, folder: Path) -> None:
    """Write the card as README.md into the encoder's folder."""
    (folder / CARD).write_text(render(description), encoding="utf-8")


def render(description: Description) -> str:
    """Return the card in Markdown."""
    facts, predictor = description.encoder, description.predictor
    size = description.files["encoder.onnx"].bytes / 1e6
    relevance = "" if predictor.relevance is None else f", relevance {predictor.relevance}"
    lines = [
        f"# {facts.name}",
        "",
        "A text encoder for Keymatch: token ids in, unit vectors out; queries and keywords share"
        " one space. `python -m export bundle --encoder` takes this folder; no torch is needed.",
        "",
        "| | |",
        "|---|---|",
        f"| dimensions | {facts.dimension} |",
        f"| longest text | {facts.max_tokens} tokens |",
        f"| weights | {facts.quantization}, {size:.1f} MB |",
        f"| inference settings | lambda {predictor.memorization:g}, b {predictor.depth},"
        f" tau {predictor.tau:g}{relevance} |",
        f"| fingerprint | `{facts.fingerprint[:16]}` |",
    ]
    queries = description.query_encoder
    if queries is not None:
        size = description.files["query_encoder.onnx"].bytes / 1e6
        lines += [
            f"| query encoder | {queries.quantization}, {size:.1f} MB;"
            f" fingerprint `{queries.fingerprint[:16]}` |",
            "",
            "Queries are encoded by a smaller graph, a student of the encoder, whose vectors are"
            " close to it. Keywords and everything that is stored are encoded by the encoder.",
        ]
    if description.origin is not None:
        lines += ["", *_origin(description.origin)]
    lines += ["", "## Agreement with torch", "", *_table(description.parity)]
    versions = ", ".join(f"{name} {version}" for name, version in description.libraries.items())
    return "\n".join([*lines, "", f"Exported with {versions}.", ""])


def _origin(origin: Origin) -> list[str]:
    """Return the section on the training run, with its metrics if it was scored."""
    hardware = origin.hardware
    where = f"{hardware.get('device')}, {hardware.get('cores')} cores"
    mixture = ""
    if origin.mixing != 1.0:
        mixture = (
            f" The weights are {origin.mixing:g} of the way from the pretrained to the trained"
            " ones."
        )
    lines = [
        "## Training",
        "",
        f"Recipe `{origin.recipe}` on {origin.dataset}, from {origin.base}, seed {origin.seed}:"
        f" {origin.steps:,} steps, {origin.tokens:,} tokens, {origin.seconds:,.0f} s on {where}"
        f" ({hardware.get('precision')}).{mixture}",
        "",
        f"Recipe, checkpoint, lambda and b were chosen on {origin.held_out_rows:,} training rows"
        " that were held out; no test row took part.",
    ]
    shown = {name: origin.metrics[name] for name in SHOWN if name in origin.metrics}
    if shown:
        lines += ["", "## Test rows, in percent (fp32 encoder, exact search)", "", *_table(shown)]
    return lines


def _table(values: dict[str, float]) -> list[str]:
    return ["| | |", "|---|---:|", *(f"| {name} | {value:.4g} |" for name, value in values.items())]
