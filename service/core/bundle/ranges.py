"""The ranges of the numbers and texts in a bundle's JSON files, as named types.

The fields of `manifest.json`, `encoder.json` and `reranker.json` have these types. A value out of
range is refused when the file is read; the error names the field and the allowed range. The bounds
exclude numbers that would take all memory (a depth of a billion) or make every answer nonsense (a
temperature of 0). Floating-point numbers are finite.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from service.core.index.libraries import LARGEST_EF, LARGEST_M, SMALLEST_EF, SMALLEST_M

MOST_DEPTH = 2_000  # the largest depth that the service allows by default
LOWEST_TAU, HIGHEST_TAU = 1e-6, 1e6  # below: one key has all the weight; above: all weigh the same
MOST_WORDS = 2.0  # what shared words may add to a cosine
MOST_PARTS = 1_000  # of a bundle's keys
MOST_ROWS = 2**31 - 1  # rows and columns have int32 numbers


def _relative(name: str) -> str:
    """Return the path of a file inside the folder; raises `ValueError` for any other path."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or name == ".":
        raise ValueError("must be the path of a file below the folder")
    return name


Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
WordShare = Annotated[float, Field(ge=0.0, le=MOST_WORDS, allow_inf_nan=False)]  # beside cosines
RecallGoal = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Cosine = Annotated[float, Field(ge=-1.0, le=1.0, allow_inf_nan=False)]
Factor = Annotated[float, Field(ge=0.0, le=1_000.0, allow_inf_nan=False)]
Length = Annotated[float, Field(gt=0.0, le=1_000.0, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=LOWEST_TAU, le=HIGHEST_TAU, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]  # of many pairs
Seconds = Annotated[float, Field(ge=0.0, le=1e9, allow_inf_nan=False)]
Scale = Annotated[float, Field(gt=0.0, le=1e9, allow_inf_nan=False)]  # a standard deviation
Slope = Annotated[float, Field(gt=0.0, le=1e6, allow_inf_nan=False)]
Intercept = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]

RowCount = Annotated[int, Field(ge=0, le=MOST_ROWS)]
EventNumber = Annotated[int, Field(ge=0, le=2**63 - 1)]  # of an event in a label log
Natural = Annotated[int, Field(ge=0, le=2**63 - 1)]
Votes = Annotated[int, Field(ge=0, le=2**40)]
Count = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Depth = Annotated[int, Field(ge=1, le=MOST_DEPTH)]  # rows that one search returns
CandidateCount = Annotated[int, Field(ge=1, le=MOST_DEPTH)]  # labels that are reranked
Dimension = Annotated[int, Field(ge=1, le=16_384)]
Tokens = Annotated[int, Field(ge=1, le=32_768)]
Attended = Annotated[int, Field(ge=1, le=1_000)]  # items that a query attends to
Trees = Annotated[int, Field(ge=1, le=100_000)]
Edges = Annotated[int, Field(ge=SMALLEST_M, le=LARGEST_M)]
Queue = Annotated[int, Field(ge=SMALLEST_EF, le=LARGEST_EF)]

Text = Annotated[str, Field(max_length=10_000)]
Chain = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]  # a label log's chain, "" without a log
FileName = Annotated[str, Field(max_length=1_000), AfterValidator(_relative)]
