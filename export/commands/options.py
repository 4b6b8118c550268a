"""Groups of options; each field is one option of the command line, and its text the help."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

from service.core.bundle.manifest import PredictorFacts
from service.core.errors import InvalidInput
from service.core.index.libraries import IndexParameters

if TYPE_CHECKING:  # it needs scipy, which --help must not
    from export.encoder_json import PredictorDefaults

MOST_DEPTH = 2000  # what the service allows by default
FLAT = Parameter(name="*")  # the options carry the names of the fields, without the group's


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """The index library, and how it builds and searches its HNSW graph.

    Attributes
    ----------
    library
        The index library; hnswlib needs the extra of that name.
    m
        Edges per node of the HNSW graph.
    ef_construction
        Queue length while building the graph.
    ef
        Queue length while searching the graph. Default: 500.
    recall
        In place of ef: the share of the truly nearest keys that a search is to find, above 0 and at
        most 1. The smallest ef that reaches it at the bundle's depth, on queries of the test split,
        goes into the bundle with the measured recall.
    """

    library: Literal["faiss", "hnswlib"] = "faiss"
    m: int = 32
    ef_construction: int = 200
    ef: int | None = None
    recall: float | None = None

    def parameters(self) -> IndexParameters:
        """Return them as the index library takes them.

        Raises `InvalidConfig` for a number out of range, and `InvalidInput` for ef beside recall.
        """
        if self.ef is not None and self.recall is not None:
            raise InvalidInput("ef and recall exclude each other: recall chooses ef")
        given = {name: value for name, value in asdict(self).items() if value is not None}
        given.pop("recall", None)
        return IndexParameters(**given)


@dataclass(frozen=True, kw_only=True)
class PredictorOptions:
    """The predictor's defaults, where they should differ from those of the encoder.

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
    """

    tau: float | None = None
    depth: int | None = None
    memorization: float | None = None

    def __post_init__(self) -> None:
        if self.tau is not None and not 0 < self.tau < float("inf"):
            raise InvalidInput(f"--tau must be a finite number above 0, not {self.tau:g}")
        if self.depth is not None and not 1 <= self.depth <= MOST_DEPTH:
            raise InvalidInput(f"--depth must lie in 1..{MOST_DEPTH}, not {self.depth}")
        if self.memorization is not None and not 0 <= self.memorization <= 1:
            raise InvalidInput(f"--memorization must lie in 0..1, not {self.memorization:g}")

    def over(self, defaults: PredictorDefaults) -> PredictorFacts:
        """Return the encoder's defaults, replaced by every option that was given."""
        return PredictorFacts(
            tau=defaults.tau if self.tau is None else self.tau,
            depth=defaults.depth if self.depth is None else self.depth,
            memorization=(
                defaults.memorization if self.memorization is None else self.memorization
            ),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """How many instance keys the bundle keeps, and how they vote. All label keys are kept.

    Attributes
    ----------
    instances
        Share of the instance keys that the bundle keeps, above 0 and at most 1.
    reduction
        How the instance keys to keep are chosen: random, or another method that
        `python -m training budget` measures. A method may merge several keys into their mean; the
        merged key gets the text of the nearest of them.
    relevance
        How the weights of the data's pairs count in the votes: given, as the data have them, binary
        for equal votes, or log, ln(1 + weight). Default: as `training fit` chose on held-out rows,
        otherwise given.
    """

    instances: float = 1.0
    reduction: str = "random"
    relevance: Literal["given", "binary", "log"] | None = None
