"""`keymatch lab rerank`: learns a reranker for a run's best labels, and measures it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from service.command_line import open_console
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unwritable
from training.commands.options import MANY, ScoringPrecision, figures
from training.datasets import lf_xmc
from training.datasets.dataset import require_test_rows
from training.evaluation import results
from training.evaluation.results import Results, rows_of_chosen
from training.evaluation.seeds import check_seed
from training.models.precision import Precision
from training.progress import say, stages

if TYPE_CHECKING:
    from training.reranking.finished_run import FinishedRun
    from training.reranking.measuring import Reranked

MOST_CANDIDATES = 1_000


def rerank(
    *,
    run: Path,
    data: Path,
    out: Path,
    also: Annotated[tuple[Path, ...], MANY] = (),
    name: str | None = None,
    candidates: int = 100,
    metadata: Annotated[bool, Parameter(negative=())] = False,
    seed: int = 0,
    precision: ScoringPrecision = "fp32",
) -> None:
    """Learn to rerank a run's best labels, and measure it on the test rows of a data set.

    Gradient-boosted trees read what the memory says of each candidate, and how its text overlaps
    the query's. They learn on the rows that the run holds out; cross-validation on these chooses
    their number. Writes results.json, rows.npz, the trees in LightGBM's own format (trees.txt), and
    the files that `keymatch export bundle --reranker OUT` puts into a bundle.

    Parameters
    ----------
    run
        The run's folder; the more rows it held out (`validation.rows`), the more trees can learn.
    data
        The data set's folder.
    out
        The folder for the results.
    also
        Other runs of the same recipe, such as those of `lab compare --seed`, to learn from as well.
    name
        The name in the report. Default: the run's name and "reranked".
    candidates
        How many of each query's best labels are reranked, 1 to 1000.
    metadata
        Trees also read the metadata items of queries and labels. A service does not know a query's
        items, so such trees are measured but cannot be served.
    seed
        Draws the folds, and the rows and features that each tree learns from.
    """
    _check(run, also, out, candidates)
    check_seed(seed)
    dataset = lf_xmc.read(data)
    require_test_rows(dataset)
    from training.reranking.finished_run import open_run
    from training.reranking.learning import RerankSettings, learn_reranker
    from training.reranking.measuring import measure_reranker
    from training.reranking.written import write

    opened, *others = (open_run(folder, dataset) for folder in (run, *also))
    settings = RerankSettings(candidates=candidates, metadata=metadata, seed=seed)
    console = open_console()
    say(f"reranking {opened.name}")
    with stages(console) as report:
        learned = learn_reranker(opened, others, settings, precision=precision, report=report)
        reranked = measure_reranker(learned)
    results.write(_results(name or f"{opened.name}, reranked", opened, reranked, precision), out)
    write(learned, out)
    console.print(*_said(reranked, out), sep="\n", soft_wrap=True)


def _check(run: Path, also: Sequence[Path], out: Path, candidates: int) -> None:
    if not 1 <= candidates <= MOST_CANDIDATES:
        raise InvalidInput(f"candidates must lie in 1..{MOST_CANDIDATES}")
    runs = [folder.resolve() for folder in (run, *also)]
    if out.resolve() in runs:
        raise InvalidInput("--out must be another folder than that of the run")
    if len(set(runs)) < len(runs):
        raise InvalidInput("--run and --also: each run may be given once")
    refuse_unwritable(out)


def _results(name: str, run: FinishedRun, reranked: Reranked, precision: Precision) -> Results:
    propensity = run.dataset.propensity
    return Results(
        name=name,
        system="rerank",
        dataset=run.dataset.name,
        propensity={"a": propensity.a, "b": propensity.b},
        results=tuple(result for result, _ in reranked.results),
        training_seconds=run.seconds,
        settings={"rerank": reranked.as_settings()},
        hardware=run.facts.get("hardware", {}),
        precision=precision,
        held_out_rows=reranked.learned.choice.rows,
        rows=rows_of_chosen(reranked.results),
    )


def _said(reranked: Reranked, out: Path) -> Iterator[str]:
    """Yield what was chosen, what it costs, and the figures of both orders."""
    choice, cost = reranked.learned.choice, reranked.cost
    tried = ", ".join(f"{trees}: {one:.2f}" for trees, one in choice.held_out.items())
    yield f"mean of the metrics on {choice.rows:,} held-out rows by number of trees: {tried}"
    yield (
        f"{choice.trees or 'no'} trees are kept: the best number gains {choice.gain.points:.1f} ±"
        f" {choice.gain.error:.1f} points over the memory's own order"
    )
    if choice.trees:
        yield (
            f"a query costs {cost.features:.2f} ms of processor time for its features and"
            f" {cost.trees:.2f} ms for the trees, beside the run's own; probabilities are"
            f" {100 * reranked.calibration_error:.2f} points off on average"
        )
    for result, _ in reranked.results:
        yield f"{out}: {result.method}: {figures(result.metrics)}"
