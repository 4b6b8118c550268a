"""`keymatch export bundle`: an encoder and a data set become a bundle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from export.commands.options import (
    FLAT,
    CheckpointOptions,
    IndexOptions,
    MemoryOptions,
    PredictorOptions,
    export_checkpoint,
)
from service.command_line import open_console
from service.core.bundle import manifest
from service.core.files.atomic import refuse_existing, refuse_unwritable
from service.core.processes.ray_cluster import joined

if TYPE_CHECKING:
    from export.bundle.build import BundleOptions
    from export.exported_encoder import ExportedEncoder, PredictorDefaults
    from service.core.bundle.reranker_files import RerankerFiles
    from training.datasets.dataset import Dataset

NO_RERANKER = "none"


# Longer than 40 lines because its docstring is the help of the command.
def bundle(
    *,
    encoder: str,
    data: Path,
    out: Path,
    checkpoint: Annotated[CheckpointOptions, FLAT] = CheckpointOptions(),  # noqa: B008 (frozen)
    index: Annotated[IndexOptions, FLAT] = IndexOptions(),  # noqa: B008
    predictor: Annotated[PredictorOptions, FLAT] = PredictorOptions(),  # noqa: B008
    memory: Annotated[MemoryOptions, FLAT] = MemoryOptions(),  # noqa: B008
    reranker: str | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    cluster: str | None = None,
) -> None:
    """Encode a data set, index it, and write one bundle.

    The encoder is an exported one, or a checkpoint that is exported first.

    More: training/README.md, section Export

    Parameters
    ----------
    encoder
        A folder that `keymatch export encoder` wrote (no torch is needed), or a checkpoint as
        that command takes it: a folder, a hub name, or package:NAME.
    data
        The data set's folder, as `keymatch data` writes it or in the LF-XMC layout.
    out
        The bundle's folder; it must not exist yet.
    reranker
        A folder that `keymatch lab rerank` wrote for the encoder's run: the bundle gets its
        reranker. Default: the encoder's own, if it has one; none: no reranker.
    quick
        Choose and measure nothing. The encoder's settings count, misspelled queries are corrected,
        answers have no confidence, and the manifest has no figures of quality.
    cluster
        auto|HOST:PORT: encode, and build the parts of --shards, on a Ray cluster that is started on
        this machine, or on that of a head, of which this machine is a part. All its machines must
        see the encoder's folder and that of --out. Default: in this process.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    from export.bundle.build import BundleOptions, check_options, export_bundle, scratch_folder
    from export.exported_encoder import is_exported, open_exported, predictor_defaults
    from training.datasets import lf_xmc
    from training.models.encoder_location import find_encoder

    console, parameters = open_console(), index.parameters()  # refused before anything is read
    folder = Path(find_encoder(encoder, exported=True).name)
    exported = open_exported(folder) if is_exported(folder) else None
    if exported is not None:
        checkpoint.refuse_given()
    defaults = exported.description.predictor if exported else predictor_defaults(folder)
    trees = _reranker(reranker, folder, exported)
    options = BundleOptions(
        index=parameters,
        predictor=predictor.over(defaults),
        choose=predictor.chooses and trees is None,
        instances=memory.instances,
        parts=memory.shards,
        hold_out_test=memory.hold_out_test,
        quick=quick,
        relevance=memory.relevance or defaults.relevance or "given",
        recall=index.recall,
        spelling=predictor.spelling,
        reranker=trees,
        keep_reranker=reranker is not None,
    )
    dataset = lf_xmc.read(data)
    check_options(options, dataset, out)
    if relevance := _relevance(options, defaults, dataset):
        console.print(relevance, soft_wrap=True)
    with joined(cluster) as workers:
        if exported is None:
            scratch = scratch_folder(out, "encoder")
            exported = export_checkpoint(
                encoder, dataset, scratch, options=checkpoint, console=console
            )
        options = replace(options, cluster=workers)
        export_bundle(exported, dataset, out, options=options, console=console)
    console.print(*_summary(out, exported), sep="\n", soft_wrap=True)


def _reranker(
    given: str | None, encoder: Path, exported: ExportedEncoder | None
) -> RerankerFiles | None:
    """Return the reranker in the given folder, otherwise the encoder's own.

    Raises `InvalidInput` if it was learned from another checkpoint's answers.
    """
    from training.checkpoints import reranker_folder
    from training.checkpoints.reranker_folder import weights_digest

    if given == NO_RERANKER or (given is None and not reranker_folder.is_reranker(encoder)):
        return None
    weights = weights_digest(encoder) if exported is None else exported.description.weights
    return reranker_folder.read(encoder if given is None else Path(given), weights=weights)


def _relevance(options: BundleOptions, defaults: PredictorDefaults, dataset: Dataset) -> str | None:
    """Describe the relevance scale if pairs have weights and a scale was chosen or overruled."""
    from training.datasets.pair_weights import vote_weights

    used, chosen = options.relevance, defaults.relevance
    if (used == "given" and chosen is None) or vote_weights(dataset.train.labels_of) is None:
        return None
    reason = "as --relevance says"
    if used == chosen:
        reason = "which `fit` chose on held-out rows; --relevance overrules it"
    elif chosen is not None:
        reason += f", in place of {chosen}, which `fit` chose on held-out rows"
    return f"the memory votes with relevance {used}, {reason}"


def _summary(folder: Path, exported: ExportedEncoder) -> Iterator[str]:
    """Yield what the bundle holds, and what was chosen and measured."""
    from export.bundle.answers import sentences

    facts = manifest.read(folder)
    memory, reranker = facts.memory, facts.reranker
    yield (
        f"{folder}: {memory.instances:,} instances, {memory.labels:,} labels; {exported.agreement};"
        f" {facts.index}; {facts.predictor}; spelling {facts.spelling}"
        + ("" if reranker is None else f"; a reranker of {reranker.candidates} candidates")
    )
    if facts.split is not None:
        yield str(facts.split)
    yield from sentences(facts.metrics)
