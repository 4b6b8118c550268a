"""`python -m export`: checkpoints become encoders that need no torch, and those become bundles."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

from service.command_line import run
from service.core.errors import InvalidInput, MissingExtra
from service.core.files.atomic import refuse_existing

if TYPE_CHECKING:
    from export.exported_encoder import ExportedEncoder
    from training.datasets.dataset import Dataset

app = App(
    name="export", help="Turn an encoder and a data set into a bundle that the service opens."
)
Quantize = Literal["int8", "none"]
MaxDrop = Annotated[float | None, Parameter(name="--max-drop")]
MAX_DROP = 2.0


@app.command(name="encoder")
def encoder_command(
    *,
    encoder: str,
    data: Path,
    out: Path,
    name: str | None = None,
    quantize: Quantize = "int8",
    max_tokens: int | None = None,
    query_prompt: str | None = None,
    label_prompt: str | None = None,
    max_drop: Annotated[float, Parameter(name="--max-drop")] = MAX_DROP,
) -> None:
    """Trace and quantize an encoder and check it against torch: a folder that needs no torch.

    A run's checkpoint (RUN/best) brings the lambda, b and tau that were chosen for it, and its
    model card says how it was trained and, once `python -m training score` was run, what it scores.

    Parameters
    ----------
    encoder
        A sentence-transformers or Hugging Face folder, a hub name, or package:NAME for an
        installed package that carries such a folder.
    data
        The data set whose texts the exported encoder is checked on.
    out
        The encoder's folder; it must not exist yet.
    name
        What the card and the service call it; default: the recipe of a run, else the encoder.
    quantize
        int8: dynamic, weights per channel. none: fp32.
    max_tokens
        Tokens after which a text is cut; default: the encoder's own limit.
    query_prompt
        Text put before each query; default: the encoder's own.
    label_prompt
        Text put before each label; default: the encoder's own.
    max_drop
        Most points of P@1 that quantization may cost on the parity sample.
    """
    from training.datasets import lf_xmc

    refuse_existing(out)
    console = Console()
    exported = _exported(
        encoder,
        lf_xmc.read(data),
        out,
        name=name,
        quantize=quantize,
        max_tokens=max_tokens,
        query_prompt=query_prompt,
        label_prompt=label_prompt,
        max_drop=max_drop,
        console=console,
    )
    size = exported.graph.stat().st_size / 1e6
    console.print(f"{out}: {size:.1f} MB; {_shown(exported)}", highlight=False, soft_wrap=True)


@app.command
def bundle(
    *,
    encoder: str,
    data: Path,
    out: Path,
    quantize: Quantize | None = None,
    library: Literal["faiss", "hnswlib"] = "faiss",
    m: int = 32,
    ef_construction: int = 200,
    ef: int = 500,
    tau: float | None = None,
    depth: int | None = None,
    memorization: float | None = None,
    instances: float = 1.0,
    reduction: str = "random",
    max_tokens: int | None = None,
    query_prompt: str | None = None,
    label_prompt: str | None = None,
    max_drop: MaxDrop = None,
) -> None:
    """Encode a data set, index it and write one bundle, from a checkpoint or an exported encoder.

    Parameters
    ----------
    encoder
        A folder that `python -m export encoder` wrote, which needs no torch; or what that command
        takes: a sentence-transformers or Hugging Face folder, a hub name, or package:NAME.
    data
        A data set folder, as `python -m training data` writes it or in the LF-XMC layout.
    out
        The bundle's folder; it must not exist yet.
    quantize
        int8: dynamic, weights per channel. none: fp32. Default int8; not of an exported encoder.
    library
        The index library; hnswlib needs the extra of that name.
    m
        Edges a node of the HNSW graph.
    ef_construction
        Queue size when building the graph.
    ef
        Queue size when searching it.
    tau
        Temperature of the retriever's softmax; default: what was chosen in training, else 0.04.
    depth
        Default number of retrieved keys a query (b); default: what was chosen, else 200.
    memorization
        Default weight of instances against labels (lambda); default: what was chosen, else 0.5.
    instances
        Share of the instance keys that the memory keeps, above 0 and up to 1; all labels stay.
    reduction
        How the others are left out: random, ..., as `python -m training budget` measures them. A
        merged key is the mean of several; it goes by the text that lies nearest to it.
    max_tokens
        Tokens after which a text is cut; default: the encoder's own limit.
    query_prompt
        Text put before each query; default: the encoder's own.
    label_prompt
        Text put before each label; default: the encoder's own.
    max_drop
        Most points of P@1 that quantization may cost on the parity sample; default 2.
    """
    console = Console()
    try:
        from export.bundle.build import BundleOptions, check_options, export_bundle, work_folder
        from export.encoder.provenance import predictor_defaults
        from export.exported_encoder import is_exported, open_exported
        from training.datasets import lf_xmc
        from training.models.torch_encoder import locate
        from training.reduction import budget_rows
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="demo") from error
    from service.core.bundle.manifest import PredictorFacts
    from service.core.index.libraries import IndexParameters

    folder = Path(locate(encoder))
    found = open_exported(folder) if is_exported(folder) else None
    defaults = found.description.predictor if found is not None else predictor_defaults(folder)
    tau = defaults.tau if tau is None else tau
    depth = defaults.depth if depth is None else depth
    options = BundleOptions(
        index=IndexParameters(library=library, m=m, ef_construction=ef_construction, ef=ef),
        predictor=PredictorFacts(
            tau=tau,
            depth=depth,
            memorization=defaults.memorization if memorization is None else memorization,
        ),
        instances=instances,
        reduction=reduction,
    )
    dataset = lf_xmc.read(data)
    check_options(options, dataset, out)
    if found is None:
        traced = work_folder(out) / "encoder"
        shutil.rmtree(traced, ignore_errors=True)  # of an export that was interrupted
        found = _exported(
            encoder,
            dataset,
            traced,
            name=None,
            quantize=quantize or "int8",
            max_tokens=max_tokens,
            query_prompt=query_prompt,
            label_prompt=label_prompt,
            max_drop=MAX_DROP if max_drop is None else max_drop,
            console=console,
        )
    else:
        _refuse_given(
            quantize=quantize,
            max_tokens=max_tokens,
            query_prompt=query_prompt,
            label_prompt=label_prompt,
            max_drop=max_drop,
        )
    export_bundle(found, dataset, out, options=options, console=console)
    console.print(
        f"{out}: {budget_rows(instances, total=len(dataset.train)):,} instances,"
        f" {len(dataset.labels.texts):,} labels; {_shown(found)}",
        highlight=False,
        soft_wrap=True,
    )


def _exported(
    encoder: str,
    dataset: Dataset,
    target: Path,
    *,
    name: str | None,
    quantize: str,
    max_tokens: int | None,
    query_prompt: str | None,
    label_prompt: str | None,
    max_drop: float,
    console: Console,
) -> ExportedEncoder:
    """Load a checkpoint and export it to `target`."""
    try:
        from export.encoder.export import EncoderOptions, export_encoder
        from export.encoder.parity import Tolerance
        from export.encoder.provenance import predictor_defaults, read_origin
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="export") from error
    from training.models.torch_encoder import load_encoder, locate

    checkpoint = Path(locate(encoder))
    origin = read_origin(checkpoint)
    options = EncoderOptions(
        quantization=quantize,
        tolerance=Tolerance(precision=max_drop),
        predictor=predictor_defaults(checkpoint),
        origin=origin,
        checkpoint=checkpoint,
        name=name or (origin.recipe if origin is not None else None),
    )
    loaded = load_encoder(
        encoder, max_tokens=max_tokens, query_prompt=query_prompt, label_prompt=label_prompt
    )
    return export_encoder(loaded, dataset, target, options=options, console=console)


def _refuse_given(**options: object) -> None:
    """An exported encoder's graph, prompts and limits stand already."""
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(
                f"{name.replace('_', '-')}: the encoder is exported already; give it to"
                " `python -m export encoder`"
            )


def _shown(exported: ExportedEncoder) -> str:
    parity = exported.description.parity
    return (
        f"cosine to torch {parity['parity.cosine_mean']:.4f}, P@1 on the parity sample"
        f" {parity['parity.sample_P@1']:.2f} (torch {parity['parity.sample_P@1_torch']:.2f})"
    )


if __name__ == "__main__":
    sys.exit(run(app))
