"""`python -m export`: checkpoints become bundles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

from service.core.command_line import run
from service.core.errors import MissingExtra

app = App(
    name="export", help="Turn an encoder and a data set into a bundle that the service opens."
)


@app.command
def bundle(
    *,
    encoder: str,
    data: Path,
    out: Path,
    quantize: Literal["int8", "none"] = "int8",
    library: Literal["faiss", "hnswlib"] = "faiss",
    m: int = 32,
    ef_construction: int = 200,
    ef: int = 500,
    tau: float = 0.04,
    depth: int = 200,
    memorization: float = 0.5,
    adaptive_memorization: Annotated[bool, Parameter(negative=())] = False,
    instances: float = 1.0,
    reduction: str = "random",
    max_tokens: int | None = None,
    query_prompt: str | None = None,
    label_prompt: str | None = None,
    max_drop: Annotated[float, Parameter(name="--max-drop")] = 2.0,
) -> None:
    """Trace, quantize, check against torch, encode, index and write one bundle.

    Parameters
    ----------
    encoder
        A sentence-transformers or Hugging Face folder, a hub name, or package:NAME for an
        installed package that carries such a folder.
    data
        A data set folder, as `python -m training data` writes it or in the LF-XMC layout.
    out
        The bundle's folder; it must not exist yet.
    quantize
        int8: dynamic, weights per channel. none: fp32.
    library
        The index library; hnswlib needs the extra of that name.
    m
        Edges a node of the HNSW graph.
    ef_construction
        Queue size when building the graph.
    ef
        Queue size when searching it.
    tau
        Temperature of the retriever's softmax.
    depth
        Default number of retrieved keys a query (b).
    memorization
        Default weight of instances against labels (lambda).
    adaptive_memorization
        In its place each query's own lambda, which `python -m training adapt` has learned for the
        encoder at this tau and depth. Without it a learned one goes into the bundle switched off.
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
        Most points of P@1 that quantization may cost on the parity sample.
    """
    console = Console()
    try:
        from export.adaptive import learned_memorization
        from export.bundle import ExportOptions, export_bundle
        from export.parity import Tolerance
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="export") from error
    from service.core.index import IndexParameters
    from service.core.manifest import PredictorFacts
    from training.datasets import lf_xmc
    from training.encoder import load_encoder, locate
    from training.reduction import budget_rows

    options = ExportOptions(
        quantization=quantize,
        index=IndexParameters(library=library, m=m, ef_construction=ef_construction, ef=ef),
        predictor=PredictorFacts(
            tau=tau,
            depth=depth,
            memorization=memorization,
            adaptive=learned_memorization(
                Path(locate(encoder)), tau=tau, depth=depth, enabled=adaptive_memorization
            ),
        ),
        instances=instances,
        reduction=reduction,
        tolerance=Tolerance(precision=max_drop),
    )
    dataset = lf_xmc.read(data)
    loaded = load_encoder(
        encoder, max_tokens=max_tokens, query_prompt=query_prompt, label_prompt=label_prompt
    )
    parity = export_bundle(loaded, dataset, out, options=options, console=console)
    console.print(
        f"{out}: {budget_rows(instances, total=len(dataset.train)):,} instances,"
        f" {len(dataset.labels.texts):,} labels; cosine to torch {parity.cosine:.4f},"
        f" P@1 on the parity sample {parity.precision:.2f}"
        f" (torch {parity.torch_precision:.2f})"
    )


if __name__ == "__main__":
    sys.exit(run(app))
