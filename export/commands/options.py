"""Groups of command-line options: each field is one option, its description the help text.

`export_checkpoint` exports a checkpoint for both commands.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from service.core.bundle.manifest import PredictorFacts
from service.core.bundle.ranges import (
    HIGHEST_TAU,
    LOWEST_TAU,
    MOST_DEPTH,
    MOST_PARTS,
    MOST_WORDS,
)
from service.core.errors import InvalidInput
from service.core.index.libraries import IndexParameters
from service.core.types import Spelling

if TYPE_CHECKING:  # these import scipy, which --help must not load
    from export.exported_encoder import ExportedEncoder, PredictorDefaults
    from training.datasets.dataset import Dataset

FLAT = Parameter(name="*")  # options are named after the fields, without the group's name


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """The index library, and how it builds and searches its HNSW graph.

    Attributes
    ----------
    library
        The index library. faiss-sq4 searches in half of faiss's memory; hnswlib needs the extra of
        that name.
    m
        Edges per node of the HNSW graph.
    ef_construction
        Queue length while building the graph.
    ef
        Queue length while searching the graph. Default: 500, or more if 500 finds less than 99 % of
        the truly nearest keys.
    recall
        Instead of ef: the share of the truly nearest keys that a search is to find, above 0 and at
        most 1. The smallest ef that reaches it at the bundle's depth, on queries of the test split,
        goes into the bundle with the measured recall.
    """

    library: Literal["faiss", "faiss-sq4", "hnswlib"] = "faiss"
    m: int = 32
    ef_construction: int = 200
    ef: int | None = None
    recall: float | None = None

    def parameters(self) -> IndexParameters:
        """Return the options as the index library's parameters.

        Raises `InvalidConfig` for a number out of range, `InvalidInput` if ef and recall are given.
        """
        if self.ef is not None and self.recall is not None:
            raise InvalidInput("ef and recall exclude each other: recall chooses ef")
        given = {name: value for name, value in asdict(self).items() if value is not None}
        goal = given.pop("recall", IndexParameters.recall_goal)
        return IndexParameters(**given, recall_goal=goal)


_NUMBERS = ("tau", "depth", "memorization", "words", "hubs")


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """The predictor's defaults that should differ from the encoder's.

    If none of the numbers is given, and the encoder was not trained on this data set, they are
    chosen on held-out rows. This needs 500 rows with labels.

    Attributes
    ----------
    tau
        Temperature of the retriever's softmax. Default: as chosen in training, otherwise 0.04.
    depth
        Default number of retrieved keys per query (b). Default: as chosen in training, otherwise
        200.
    memorization
        Default weight of instance keys against label keys (lambda), 0 to 1. Default: as chosen in
        training, otherwise 0.5.
    words
        What the words that a query shares with a row add to their cosine, 0 to 2. Codes, and words
        of posted rows that few rows have, count at 0, too. Default: as chosen in training,
        otherwise 0.
    hubs
        Share of a key's hubness, its nearness to many queries, that is subtracted from its
        similarity, 0 to 1. Default: as chosen in training, otherwise 0.
    spelling
        auto: search a misspelled query as it was meant; off: as it is. A request may choose
        otherwise. Default: auto, unless it loses P@1, beyond noise, on rows of the bundle whose own
        text is hidden.
    """

    tau: float | None = None
    depth: int | None = None
    memorization: float | None = None
    words: float | None = None
    hubs: float | None = None
    spelling: Spelling | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("tau", LOWEST_TAU, HIGHEST_TAU),
            ("depth", 1, MOST_DEPTH),
            ("memorization", 0, 1),
            ("words", 0, MOST_WORDS),
            ("hubs", 0, 1),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidInput(f"--{name} must lie in {low:g}..{high:g}, not {value:g}")

    def over(self, defaults: PredictorDefaults) -> PredictorFacts:
        """Return the encoder's defaults, replaced by every option that was given."""
        return PredictorFacts(
            **{
                name: getattr(defaults, name) if (given := getattr(self, name)) is None else given
                for name in _NUMBERS
            }
        )

    @property
    def chooses(self) -> bool:
        """Whether no number was given, so that all may be chosen on held-out rows."""
        return all(getattr(self, name) is None for name in _NUMBERS)


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """How many instance keys the bundle keeps, how they vote, and how all keys are divided.

    Attributes
    ----------
    instances
        Share of the instance keys that the bundle keeps, above 0 and at most 1: those that together
        are nearest to all rows with the same labels. All label keys are kept. `keymatch lab budget`
        measures the loss.
    relevance
        How the weights of the data's pairs count in the votes: given, as the data have them, binary
        for equal votes, or log, ln(1 + weight). Default: as `fit` chose on held-out rows,
        otherwise given.
    hold_out_test
        Leave the rows of the test split out of the memory, to measure the bundle on them. By
        default they are in it once the settings were chosen and measured without them.
    shards
        Divide the keys into so many parts, each with its own graph, for `keymatch serve --shards`.
        Default: not divided.
    """

    instances: float = 1.0
    relevance: Literal["given", "binary", "log"] | None = None
    hold_out_test: Annotated[bool, Parameter(negative=())] = False
    shards: int | None = None

    def __post_init__(self) -> None:
        if self.shards is not None and not 1 <= self.shards <= MOST_PARTS:
            raise InvalidInput(f"--shards is {self.shards}, and may be 1 to {MOST_PARTS}")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How a checkpoint is exported. An option that is None has its default.

    Attributes
    ----------
    quantize
        static-int8: 8 bits, calibrated on the data set, the same vector in any batch. int8: 8 bits
        with scales of each batch, encoded one by one. none: fp32, which a GPU needs. Default:
        static-int8.
    max_tokens
        Number of tokens after which a text is cut. Default: the encoder's own limit.
    query_prompt
        Text that is put before each query. Default: the encoder's own.
    label_prompt
        Text that is put before each label. Default: the encoder's own.
    max_drop
        How many percentage points of P@1 quantization may cost on the sample. Default: 2.
    """

    quantize: Literal["static-int8", "int8", "none"] | None = None
    max_tokens: int | None = None
    query_prompt: str | None = None
    label_prompt: str | None = None
    max_drop: float | None = None

    def refuse_given(self) -> None:
        """Raise `InvalidInput` if an option is given: in an exported encoder they are fixed."""
        for name, value in asdict(self).items():
            if value is not None:
                raise InvalidInput(
                    f"{name.replace('_', '-')}: the encoder is exported already; give this option"
                    " to `keymatch export encoder` with its checkpoint"
                )


def export_checkpoint(
    checkpoint: str,
    dataset: Dataset,
    target: Path,
    *,
    options: CheckpointOptions,
    name: str | None = None,
    console: Console,
) -> ExportedEncoder:
    """Load a checkpoint (a folder, a hub name or package:NAME) and export it to `target`.

    `name` defaults to the recipe of the run that trained it, otherwise to `checkpoint`. Raises
    what `export_encoder` raises.
    """
    from export.encoder.export import EncoderOptions, export_encoder
    from export.encoder.parity import Tolerance
    from export.exported_encoder import read_origin
    from training.models.checkpoint_settings import prompt_hints
    from training.models.encoder_location import locate
    from training.models.torch_encoder import load_encoder

    folder = Path(locate(checkpoint))
    origin = read_origin(folder)
    encoder_options = EncoderOptions(
        quantization=options.quantize or EncoderOptions.quantization,
        tolerance=Tolerance(
            precision=Tolerance.precision if options.max_drop is None else options.max_drop
        ),
        origin=origin,
        checkpoint=folder,
        name=name or (origin.recipe if origin is not None else None),
    )
    encoder = load_encoder(
        checkpoint,
        max_tokens=options.max_tokens,
        query_prompt=options.query_prompt,
        label_prompt=options.label_prompt,
    )
    for hint in prompt_hints(encoder):
        console.print(f"note: {hint}", soft_wrap=True)
    return export_encoder(encoder, dataset, target, options=encoder_options, console=console)
