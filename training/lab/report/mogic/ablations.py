"""MOGIC's Tables 4, 5, 10, 13 and 14, and the weights of its losses, from measured runs.

Each function returns the rows of a table, or none if no run measures it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.evaluation.results import PER_ROW
from training.lab.report.mogic.relations import (
    Disciple,
    Family,
    families,
    oracles,
    reads_metadata_of,
    same_recipe,
)
from training.lab.report.runs import Run
from training.lab.report.seeds import difference, labels_alone, seeded, with_memory
from training.lab.report.significance import p_value, paired_p
from training.lab.report.tables import percent

METRICS = ("P@1", "P@5", "nDCG@5", "PSP@1", "PSP@5")  # the paper's metrics, in its order
Row = list[str]

# Table 5's row -> whether own loss, alignment and matching have a weight above 0
FULL, ALONE = "Disciple + Alignment + Matching", "Disciple"
LOSSES = {
    FULL: (True, True, True),
    "Disciple + Alignment": (True, True, False),
    "Disciple + Matching": (True, False, True),
    ALONE: (True, False, False),
    "Alignment + Matching": (False, True, True),
}
# The texts to which the oracle's metadata are appended -> Table 10's setting and its words
SETTINGS = {
    "both": ("1", "MOGIC"),
    "none": ("2", "the oracle reads no metadata"),
    "queries": ("", "the oracle reads those of queries alone"),
    "labels": ("", "the oracle reads those of labels alone"),
}
LINKED = ("3", "the disciple trains on true metadata")


def oracle_rows(runs: Sequence[Run]) -> list[Row]:
    """Table 4's right half: each oracle, and the texts that it reads with metadata."""
    read = {"none": "none", "both": "queries and labels"}
    rows = []
    for run in oracles(runs):
        side = reads_metadata_of(run)
        rows.append([run.name, run.results.system, read.get(side, side), *figures(run)])
    return rows


def guided_rows(runs: Sequence[Run]) -> list[Row]:
    """Tables 7 and 13: each disciple alone and guided by an oracle with all metadata; the gain."""
    rows: list[Row] = []
    for family in families(runs):
        for disciple in family.disciples:
            if family.alone is None or not _as_in_table_13(disciple):
                continue
            system, run = disciple.run.results.system, disciple.run
            rows += [
                [f"MOGIC ({system})", run.name, *figures(run)],
                [system, family.alone.name, *figures(family.alone)],
                ["gain", "", *gains(run, family.alone)],
            ]
    return rows


def seeded_rows(runs: Sequence[Run]) -> list[Row]:
    """The gain by guidance over several seeds, for the disciples of Tables 7 and 13."""
    by_name = {one.run.name: one for one in seeded(runs)}
    rows: list[Row] = []
    for family in families(runs):
        alone = None if family.alone is None else by_name.get(family.alone.name)
        for disciple in family.disciples:
            guided = by_name.get(disciple.run.name)
            if alone is None or guided is None or not _as_in_table_13(disciple):
                continue
            shared = len(guided.by_seed.keys() & alone.by_seed.keys())
            system, name = disciple.run.results.system, disciple.run.name
            columns = (*map(with_memory, METRICS), labels_alone("P@1"))
            spreads = [difference(guided, alone, column) for column in columns]
            rows.append([system, name, str(shared), *spreads])
    return rows


def loss_rows(runs: Sequence[Run]) -> list[Row]:
    """Table 5: both guidance losses or one of them, with and without the disciple's own loss."""
    rows: list[Row] = []
    for family in families(runs):
        for group in family.by_oracle():
            by_losses = {_counted(disciple): disciple.run for disciple in group}
            ablated = {name: by_losses[one] for name, one in LOSSES.items() if one in by_losses}
            if FULL not in ablated or len(ablated) < 2:
                continue
            if family.alone is not None:
                ablated[ALONE] = family.alone
            rows += [
                [run.results.system, name, run.name, *figures(run), _against(run, ablated[FULL])]
                for name, run in sorted(ablated.items(), key=lambda line: [*LOSSES].index(line[0]))
            ]
    return rows


def weight_rows(runs: Sequence[Run]) -> list[Row]:
    """Runs with weights alpha and beta other than 0 and the paper's values."""
    rows: list[Row] = []
    for family in families(runs):
        for group in family.by_oracle():
            swept = [one for one in group if one.differs_in("alpha", "beta")]
            if all(_counted(one) is not None for one in swept):
                continue
            alone = family.alone
            if alone is not None:
                rows.append([alone.results.system, "", "", alone.name, *figures(alone), ""])
            for one in sorted(swept, key=lambda one: (one.guidance.alpha, one.guidance.beta)):
                weights = (f"{one.guidance.alpha:g}", f"{one.guidance.beta:g}")
                against = "" if alone is None else gain(one.run, alone)
                system, name = one.run.results.system, one.run.name
                rows.append([system, *weights, name, *figures(one.run), against])
    return rows


def component_rows(runs: Sequence[Run]) -> list[Row]:
    """Table 10: what the oracle reads, and what the disciple trains on."""
    found = families(runs)
    rows: list[Row] = []
    for family in found:
        if family.first.setting("system", "metadata") == "linked":
            continue
        lines = list(_components(family, found))
        if len({(number, words) for number, words, _ in lines}) < 2:
            continue
        first = lines[0][2].run
        for number, words, disciple in lines:
            run, oracle = disciple.run, disciple.oracle
            cells = [run.results.system, number, f"{words}; guided by {oracle.name}", run.name]
            rows.append([*cells, *figures(run), _against(run, first)])
    return rows


def projection_rows(runs: Sequence[Run]) -> list[Row]:
    """Table 14: a learned projection of the oracle's vectors against their principal components."""
    rows: list[Row] = []
    for family in families(runs):
        for group in family.by_oracle():
            by_kind = {
                one.guidance.projection: one.run for one in group if one.differs_in("projection")
            }
            if len(by_kind) < 2:
                continue
            for kind, run in sorted(by_kind.items(), reverse=True):  # pca first
                name = "main directions" if kind == "pca" else kind
                texts = [run.results.system, group[0].oracle.name, name, run.name]
                rows.append([*texts, *figures(run), _against(run, by_kind["pca"])])
    return rows


def figures(run: Run) -> Row:
    """Format the metrics at the chosen settings, and P@1 of the labels' keys alone."""
    alone = run.labels_alone
    cells = [percent(run.chosen.metrics[metric]) for metric in METRICS]
    return [*cells, "" if alone is None else percent(alone.metrics["P@1"])]


def gains(run: Run, other: Run) -> Row:
    """Format the gains of a run over another one, for each figure of `figures`."""
    cells = [gain(run, other, metric) for metric in METRICS]
    ours, theirs = run.labels_alone, other.labels_alone
    if ours is None or theirs is None:
        return [*cells, ""]
    return [*cells, f"{ours.metrics['P@1'] - theirs.metrics['P@1']:+.2f}"]


def gain(run: Run, other: Run, metric: str = "P@1") -> str:
    """Format a difference with the p-value of the paired t-test: "+0.43 (p 0.02)"."""
    points = run.chosen.metrics[metric] - other.chosen.metrics[metric]
    if metric not in PER_ROW:
        return f"{points:+.2f}"
    column = PER_ROW.index(metric)
    p = paired_p(run.rows[:, column], other.rows[:, column])
    return f"{points:+.2f} (p {p_value(p)})"


def _as_in_table_13(disciple: Disciple) -> bool:
    return disciple.as_in_the_paper and reads_metadata_of(disciple.oracle) == "both"


def _counted(disciple: Disciple) -> tuple[bool, bool, bool] | None:
    """Tell which losses are active; None if a weight is neither 0 nor the paper's."""
    guidance = disciple.guidance
    if not disciple.differs_in("own_loss", "alpha", "beta"):
        return None
    known = guidance.own_loss in (0.0, 1.0) and {guidance.alpha, guidance.beta} <= {0.0, 0.1}
    return (guidance.own_loss > 0, guidance.alpha > 0, guidance.beta > 0) if known else None


def _components(family: Family, others: Sequence[Family]) -> Iterator[tuple[str, str, Disciple]]:
    """The disciples guided as in the paper, by what their oracle reads or on true items."""
    usual = [one for one in family.disciples if one.as_in_the_paper]
    for side, (number, words) in SETTINGS.items():
        yield from ((number, words, one) for one in usual if reads_metadata_of(one.oracle) == side)
    for other in others:
        linked = other.first.setting("system", "metadata") == "linked"
        if linked and same_recipe(other.first, family.first, but="metadata"):
            yield from ((*LINKED, one) for one in other.disciples if one.as_in_the_paper)


def _against(run: Run, first: Run) -> str:
    """Format the gain over the first run of the table; "" for the first run itself."""
    return "" if run is first else gain(run, first)
