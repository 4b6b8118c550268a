"""Compares two bundles' answers to the same queries.

It measures how far two rankings agree, how good each is, and whether a difference may be chance.
Slices measure the same for a part of the queries, or of the labels.
Shapes: n queries, at most k keywords per ranking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from service.bulk.answering import results
from service.bulk.memory import open_memory
from service.bulk.progress import Report
from service.bulk.query_file import ONLY_COLUMN, FileQuery, QueryRule
from service.core import times
from service.core.bundle.bundle import open_bundle
from service.core.errors import InvalidConfig, InvalidData, echoed
from service.core.index.protocol import batches
from service.core.options import complete_options
from service.core.prediction.answers import KeywordAnswer
from service.core.prediction.reliability import Reliability, reliability
from service.core.tables.columns import ending_of, read_columns
from service.core.text_identity import identity
from service.core.types import Bools, Doubles
from service.settings import EngineSettings, Limits

TEN = 10  # keywords in which the best label of a known query is looked for
DRAWS = 10_000  # random draws of the randomization test and of the bootstrap
CONFIDENCE = 95  # percent, of the confidence interval
_SEED = 0

Keywords = Sequence[KeywordAnswer]  # the best first
KnownLabels = dict[str, tuple[str, ...]]  # query -> distinct ids or texts of its labels
Clicks = Mapping[str, Mapping[str, float]]  # query -> id or text of a label -> weight of its rows
SliceValues = Mapping[str, Sequence[str]]  # query, or a label's id or text -> its distinct values
_ANSWERED_TOGETHER = 2_048  # queries
SHOWN = 20  # number of most changed queries on the page
SLICES = 20  # number of values of a column or field that are slices of their own


def read_queries(
    path: Path,
    *,
    query: str | None,
    labels: Sequence[str],
    limits: Limits,
    delimiter: str | None = None,
) -> KnownLabels:
    """Read a file's queries in order. Labels of rows with the same query are joined.

    `labels` name columns; a cell holds the id or the text of a label, a list of them, or nothing.
    `delimiter` is for csv files. Raises `InvalidData` for a query that `POST /predict` would
    refuse, and for a file without one.
    """
    known: dict[str, dict[str, None]] = {}
    for text, line, cells in _rows(path, query, labels, limits, delimiter):
        of_query = known.setdefault(text, {})
        for name, cell in zip(labels, cells, strict=True):
            for label in _labels_of(cell):
                if not isinstance(label, str):
                    message = f"a label is no text but {type(label).__name__}"
                    raise InvalidData(path, message, line=line, field=name)
                of_query.update({label.strip(): None} if label.strip() else {})
    if not known:
        raise InvalidData(path, "holds no query; give a file with at least one row")
    return {text: tuple(of_query) for text, of_query in known.items()}


def read_clicks(
    path: Path,
    *,
    query: str | None,
    labels: Sequence[str],
    weight: str | None,
    limits: Limits,
    delimiter: str | None = None,
) -> Clicks:
    """Add up the weights of each query's labels; without the column `weight`, a row weighs 1.

    Raises what `read_queries` does, and `InvalidData` for a weight that is not a positive number.
    """
    clicks: dict[str, dict[str, float]] = {}
    names = [*labels, *([] if weight is None else [weight])]
    for text, line, cells in _rows(path, query, names, limits, delimiter) if labels else ():
        try:
            weighs = 1.0 if weight is None else float(cells.pop())
        except (TypeError, ValueError):
            weighs = -1.0
        if not 0 < weighs < float("inf"):
            message = "is not a positive number; correct or remove the row"
            raise InvalidData(path, message, line=line, field=str(weight))
        of_query = clicks.setdefault(text, {})
        for label in chain.from_iterable(map(_labels_of, cells)):
            if label.strip():
                of_query[label.strip()] = of_query.get(label.strip(), 0.0) + weighs
    return {text: of_labels for text, of_labels in clicks.items() if of_labels}


def read_slices(
    path: Path,
    *,
    query: str | None,
    columns: Sequence[str],
    limits: Limits,
    delimiter: str | None = None,
) -> dict[str, SliceValues]:
    """Read the values of each query in some columns, by column.

    A cell holds a text, a number, a boolean, a list of them, or nothing. Values of rows with the
    same query are joined. Raises what `read_queries` does, and `InvalidData` for other cells.
    """
    found: dict[str, dict[str, dict[str, None]]] = {name: {} for name in columns}
    for text, line, cells in _rows(path, query, columns, limits, delimiter) if columns else ():
        for name, cell in zip(columns, cells, strict=True):
            try:
                values = _values_of(cell)
            except ValueError as error:
                raise InvalidData(path, str(error), line=line, field=name) from error
            found[name].setdefault(text, {}).update(dict.fromkeys(values))
    return {
        name: {text: tuple(values) for text, values in of_queries.items()}
        for name, of_queries in found.items()
    }


def _rows(
    path: Path, query: str | None, columns: Sequence[str], limits: Limits, delimiter: str | None
) -> Iterator[tuple[str, int, list[Any]]]:
    """Yield each row's query, its line, and its cells in `columns`."""
    if query is None and ending_of(path) != ".txt":
        raise InvalidConfig(f"{path} is a table: name its column of queries by --query")
    column, rule = query or ONLY_COLUMN, QueryRule(limits)
    for line, (value, *cells) in read_columns(path, [column, *columns], delimiter=delimiter):
        checked = rule.check(value)
        if checked.problem:
            message = f"{checked.problem}; correct or remove the row"
            raise InvalidData(path, message, line=line, field=column)
        yield checked.text, line, cells


def _values_of(cell: Any) -> tuple[str, ...]:
    """Return the distinct values in a cell, or of a label's field, as texts without line breaks."""
    values: dict[str, None] = {}
    for value in cell if isinstance(cell, list | tuple) else [cell]:
        if isinstance(value, dict | list):
            raise ValueError("a value of a slice must be a text, a number, a boolean or a list")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        values.update(dict.fromkeys([] if value is None else [" ".join(text.split())]))
    return tuple(value for value in values if value)


def field_values(
    bundles: Sequence[Path], names: Sequence[str], known: KnownLabels
) -> Mapping[str, SliceValues]:
    """Read the values of labels in some metadata fields, by field.

    Labels are named by id, and known ones by text as well. If both bundles have a value, the last
    one's counts. Raises `InvalidConfig` for a field that no label has.
    """
    found: dict[str, dict[str, Sequence[str]]] = {name: {} for name in names}
    fields: dict[str, None] = {}
    wanted = {label for labels in known.values() for label in labels}
    for folder in bundles if names else ():
        bundle = open_bundle(folder)
        of_text: dict[str, dict[str, Sequence[str]]] = {name: {} for name in names}
        for column, details in bundle.label_details.filled():
            fields.update(dict.fromkeys(details.metadata))
            for name in details.metadata.keys() & found.keys():
                values = _values_of(details.metadata[name])
                found[name][bundle.label_ids[column]] = values
                if (text := bundle.label_texts[column]) in wanted:
                    of_text[name].setdefault(text, values)
        for name, texts in of_text.items():
            found[name].update({text: of for text, of in texts.items() if text not in found[name]})
    for name in names:
        if not found[name]:
            shown = ", ".join(map(echoed, list(fields)[:SHOWN])) or "none"
            raise InvalidConfig(
                f"--slice-field: no label of the bundles has the field {echoed(name)}; the labels'"
                f" fields are: {shown}{'…' if len(fields) > SHOWN else ''}"
            )
    return found


def _labels_of(cell: Any) -> Iterator[Any]:
    if cell is None:
        return
    for label in cell if isinstance(cell, list) else [cell]:
        yield str(label) if type(label) is int else label  # an id may be a number


def rankings_of(
    bundle: Path, queries: Sequence[str], *, k: int, settings: EngineSettings, progress: Report
) -> dict[str, Keywords]:
    """Return the k best keywords of each query, with the bundle's own depth and memorization.

    `progress` is called with the number of queries answered since its last call.
    """
    loaded = open_memory(bundle, None, settings, until=0)
    options = complete_options(loaded.bundle.manifest, top_k=k)
    asked = [FileQuery(text=query) for query in queries]
    parts = [asked[part] for part in batches(len(asked), _ANSWERED_TOGETHER)]
    rankings: dict[str, Keywords] = {}
    now = times.now()
    with ThreadPoolExecutor(settings.threads) as pool:
        for answered in pool.map(lambda part: results(loaded, part, options, now=now), parts):
            progress(len(answered))
            rankings.update((query.text, found["keywords"]) for query, found in answered.items())
    return rankings


def rows_among(bundle: Path, queries: Sequence[str]) -> set[str]:
    """Return the queries that are instances of a bundle's memory, up to case and spaces."""
    of_identity: defaultdict[str, set[str]] = defaultdict(set)
    for query in queries:
        of_identity[identity(query)].add(query)
    opened = open_bundle(bundle)
    aliases = frozenset(opened.aliases.tolist())  # instances too, but texts of labels
    found = (identity(text) for row, text in enumerate(opened.instance_texts) if row not in aliases)
    return set(chain.from_iterable(of_identity[one] for one in found if one in of_identity))


@dataclass(frozen=True, kw_only=True)
class KnownAnswers:
    """How one side answers known queries, as shares of their clicks.

    The label with the most clicks is `first`, or among the first ten.
    """

    first: float
    in_ten: float


@dataclass(frozen=True, kw_only=True)
class Memories:
    """How many queries are instances of the memories of A and of B.

    An instance that is asked shows how known queries are answered. So the metrics leave out
    queries that only one side has. `known` has A and B on those that both have, with their clicks.
    """

    left: int = 0
    right: int = 0
    both: int = 0
    clicks: float = 0.0
    known: tuple[KnownAnswers, KnownAnswers] | None = None

    @property
    def one_sided(self) -> int:
        """The number of queries that only one side has."""
        return self.left + self.right - 2 * self.both


def known_answers(rankings: Mapping[str, Keywords], clicks: Clicks) -> KnownAnswers:
    """Return the shares of clicks of queries whose most clicked label is first, and among ten."""
    total = first = in_ten = 0.0
    for query, of_labels in clicks.items():
        weight, most = sum(of_labels.values()), max(of_labels.values())
        best = {label for label, one in of_labels.items() if one == most}
        hits = [is_known(keyword, best) for keyword in rankings[query][:TEN]]
        total += weight
        first += weight * any(hits[:1])
        in_ten += weight * any(hits)
    return KnownAnswers(first=first / total, in_ten=in_ten / total)


def _memories(
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    rows: tuple[Collection[str], Collection[str]],
    clicks: Clicks,
) -> Memories:
    ours, theirs = map(set, rows)
    both = ours & theirs
    of_both = {query: of_labels for query, of_labels in clicks.items() if query in both}
    return Memories(
        left=len(ours),
        right=len(theirs),
        both=len(both),
        clicks=sum(sum(of_labels.values()) for of_labels in of_both.values()),
        known=(known_answers(left, of_both), known_answers(right, of_both)) if of_both else None,
    )


def overlaps(left: Keywords, right: Keywords, depth: int) -> list[float]:
    """Return overlap@1 to overlap@depth: the share of top labels, by id, that both rankings have.

    If both are empty, it is 1. The mean is the average overlap, in which top ranks count most.
    """
    ours: set[str] = set()
    theirs: set[str] = set()
    shared, shares = 0, []
    for place in range(depth):
        if place < len(left):
            shared += left[place]["id"] in theirs
            ours.add(left[place]["id"])
        if place < len(right):
            shared += right[place]["id"] in ours
            theirs.add(right[place]["id"])
        longest = max(len(ours), len(theirs))
        shares.append(shared / longest if longest else 1.0)
    return shares


def rank_changes(left: Keywords, right: Keywords) -> dict[str, int]:
    """Return by how many ranks each label of both rankings moved; positive is upwards."""
    ranks = {keyword["id"]: rank for rank, keyword in enumerate(left)}
    return {
        keyword["id"]: ranks[keyword["id"]] - rank
        for rank, keyword in enumerate(right)
        if keyword["id"] in ranks
    }


def is_known(keyword: KeywordAnswer, known: Collection[str]) -> bool:
    """Return whether a keyword is one of the known labels, given by id or text."""
    return keyword["id"] in known or keyword["text"] in known


def precision(ranking: Keywords, known: Collection[str], depth: int) -> float:
    """Return P@depth: the share of the first `depth` ranks that hold a known label."""
    return sum(is_known(keyword, known) for keyword in ranking[:depth]) / depth


def recall(ranking: Keywords, known: Collection[str], depth: int) -> float:
    """Return R@depth: the share of known labels among the first `depth` keywords."""
    shown = {name for keyword in ranking[:depth] for name in (keyword["id"], keyword["text"])}
    return sum(label in shown for label in known) / len(known)


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A metric of both sides over the same queries.

    `low` and `high` bound the difference of the means (right minus left) by a paired bootstrap. `p`
    is the two-sided p-value of the paired randomization test.
    """

    left: float
    right: float
    low: float
    high: float
    p: float
    wins: int
    losses: int
    ties: int

    @property
    def difference(self) -> float:
        """The difference of the means, right minus left."""
        return self.right - self.left


def paired_test(left: Doubles, right: Doubles) -> PairedTest:
    """Test whether the means of `left` and `right`, [n] each, differ.

    Randomization: if both were equally good, each query's difference could as well have the other
    sign. p is the share of `DRAWS` random sign choices whose mean is at least as far from 0 as the
    observed mean, which counts as one draw. Queries of equal difference are drawn together.
    """
    generator = np.random.default_rng(_SEED)
    differences = np.round(right - left, 12)
    mean, n = differences.mean(), len(differences)
    sizes, counts = np.unique(np.abs(differences), return_counts=True)
    positive = generator.binomial(counts, 0.5, size=(DRAWS, len(sizes)))
    flipped = (2 * positive - counts) @ sizes / n  # [DRAWS], means under random signs
    as_large = np.count_nonzero(np.abs(flipped) >= abs(mean) - 1e-12)
    values, counts = np.unique(differences, return_counts=True)
    resampled = generator.multinomial(n, counts / n, size=DRAWS) @ values / n
    outside = (100 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [outside, 100 - outside])
    return PairedTest(
        left=float(left.mean()),
        right=float(right.mean()),
        low=float(low),
        high=float(high),
        p=float((1 + as_large) / (1 + DRAWS)),
        wins=int(np.count_nonzero(differences > 0)),
        losses=int(np.count_nonzero(differences < 0)),
        ties=int(np.count_nonzero(differences == 0)),
    )


def metrics_of(
    rankings: Mapping[str, Keywords], known: Mapping[str, Collection[str]], k: int
) -> dict[str, Doubles]:
    """Compute P@1, P@5 and R@k of each query that has known labels, [n] each."""
    judged = [(rankings[query], set(labels)) for query, labels in known.items() if labels]
    return {
        "P@1": np.array([precision(ranking, labels, 1) for ranking, labels in judged]),
        "P@5": np.array([precision(ranking, labels, 5) for ranking, labels in judged]),
        f"R@{k}": np.array([recall(ranking, labels, k) for ranking, labels in judged]),
    }


def reliability_of(
    rankings: Mapping[str, Keywords], known: Mapping[str, Collection[str]]
) -> Reliability | None:
    """Compare the confidences of queries that have known labels with these labels.

    A keyword whose text is the query is left out, unless it is known. Returns None if no keyword of
    these queries has a confidence.
    """
    confidences: list[Doubles] = []
    relevant: list[Bools] = []
    for query, labels in known.items():
        if not labels:
            continue
        judged = [
            (keyword["confidence"], is_known(keyword, labels))
            for keyword in rankings[query]
            if "confidence" in keyword
            and (is_known(keyword, labels) or identity(keyword["text"]) != identity(query))
        ]
        confidences.append(np.array([sure for sure, _ in judged], np.float64))
        relevant.append(np.array([hit for _, hit in judged], bool))
    return reliability(confidences, relevant) if any(map(len, confidences)) else None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two bundles give the same keywords, averaged over all queries.

    `overlaps` are by depth; `moved` is the mean number of ranks that a shared keyword moved.
    `keywords` are the numbers of all keywords of A and of B.
    """

    queries: int
    keywords: tuple[int, int]
    unchanged: int  # queries with the same keywords in the same order
    overlaps: Mapping[int, float]
    moved: float
    up: int  # shared keywords that moved up
    down: int
    new: int  # keywords that only B has
    gone: int


@dataclass(frozen=True, kw_only=True)
class ChangedQuery:
    """A query, both rankings and its known labels."""

    query: str
    left: Keywords
    right: Keywords
    known: frozenset[str]
    agreement: float  # average overlap


@dataclass(frozen=True, kw_only=True)
class Slice:
    """The figures of a part of the comparison: the queries, or the labels, that have one `value`.

    If it is a part of the labels, keywords and known labels are these alone, and R@k is the only
    metric. A slice of queries or labels without a value has `value` None. So has the slice that all
    further values share; `others` is their number.
    The p-values are corrected for the number of slices.
    """

    value: str | None
    others: int = 0
    agreement: Agreement
    judged: int
    quality: Mapping[str, PairedTest]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The content of the page; `quality` is empty without known labels.

    `slices` are parts of the queries, by column of the file. `label_slices` are parts of the
    labels, by metadata field.
    """

    names: tuple[str, str]
    k: int
    agreement: Agreement
    memories: Memories
    judged: int  # queries with known labels that both memories have, or neither
    quality: Mapping[str, PairedTest]
    reliability: tuple[Reliability | None, Reliability | None]  # None: without confidences
    changed: Sequence[ChangedQuery]
    slices: Mapping[str, Sequence[Slice]]
    label_slices: Mapping[str, Sequence[Slice]]


def compare(
    names: tuple[str, str],
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    known: KnownLabels,
    *,
    k: int,
    slices: Mapping[str, SliceValues] | None = None,
    label_slices: Mapping[str, SliceValues] | None = None,
    rows: tuple[Collection[str], Collection[str]] = ((), ()),
    clicks: Clicks | None = None,
) -> Comparison:
    """Compare each query's two rankings of at most k keywords, in the queries' order.

    `slices` are the values of queries, by column; `label_slices` are those of labels, by field.
    `rows` are the queries that are instances of either memory, and `clicks` the labels' weights.
    """
    one_sided = set(rows[0]) ^ set(rows[1])
    shown, known = known, {one: () if one in one_sided else of for one, of in known.items()}
    shares = {query: overlaps(ranking, right[query], k) for query, ranking in left.items()}
    judged, quality = _quality(left, right, known, k)
    parts = [
        {name: list(slices_by(values, left, right, known, k=k)) for name, values in named.items()}
        for slices_by, named in ((_query_slices, slices or {}), (_label_slices, label_slices or {}))
    ]
    every = _corrected([one for named in parts for part in named.values() for one in part])
    of_queries, of_labels = (
        {name: [next(every) for _ in part] for name, part in named.items()} for named in parts
    )
    changed = [query for query in left if ids(left[query]) != ids(right[query])]
    agreements = {query: fmean(shares[query]) for query in changed}
    return Comparison(
        names=names,
        k=k,
        agreement=_agreement(left, right, list(shares.values()), k=k),
        memories=_memories(left, right, rows, clicks or {}),
        judged=judged,
        quality=quality,
        reliability=(reliability_of(left, known), reliability_of(right, known)),
        changed=[
            ChangedQuery(
                query=query,
                left=left[query],
                right=right[query],
                known=frozenset(shown[query]),
                agreement=agreements[query],
            )
            # Ties keep the file's order.
            for query in sorted(changed, key=agreements.__getitem__)[:SHOWN]
        ],
        slices=of_queries,
        label_slices=of_labels,
    )


def _quality(
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    known: Mapping[str, Sequence[str]],
    k: int,
) -> tuple[int, dict[str, PairedTest]]:
    """Return the number of queries with known labels, and the test of each metric over them."""
    judged = sum(1 for labels in known.values() if labels)
    if not judged:
        return 0, {}
    ours, theirs = metrics_of(left, known, k), metrics_of(right, known, k)
    return judged, {name: paired_test(ours[name], theirs[name]) for name in ours}


def _query_slices(
    values: SliceValues,
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    known: KnownLabels,
    *,
    k: int,
) -> Iterator[Slice]:
    """Yield the slices of queries by their `values`."""
    for of_slice, queries in _parted({query: values[query] or (None,) for query in left}):
        ours, theirs = ({query: side[query] for query in queries} for side in (left, right))
        of_known = {query: known[query] for query in queries}
        yield _slice(of_slice, ours, theirs, of_known, k=k)


def _label_slices(
    values: SliceValues,
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    known: KnownLabels,
    *,
    k: int,
) -> Iterator[Slice]:
    """Yield the slices of labels by their `values`.

    A slice's queries are those with a keyword or a known label of the slice.
    """

    def values_of(label: str) -> Sequence[str | None]:
        return values.get(label) or (None,)

    of_queries = {
        query: {
            value
            for label in (*ids(left[query]), *ids(right[query]), *known[query])
            for value in values_of(label)
        }
        for query in left
    }
    for of_slice, queries in _parted(of_queries):
        ours, theirs = (
            {
                query: [one for one in side[query] if not of_slice.isdisjoint(values_of(one["id"]))]
                for query in queries
            }
            for side in (left, right)
        )
        of_known = {
            query: [label for label in known[query] if not of_slice.isdisjoint(values_of(label))]
            for query in queries
        }
        found = _slice(of_slice, ours, theirs, of_known, k=k)
        recalls = {name: test for name, test in found.quality.items() if name == f"R@{k}"}
        yield replace(found, quality=recalls)


def _parted(
    values: Mapping[str, Collection[str | None]],
) -> Iterator[tuple[frozenset[str | None], list[str]]]:
    """Yield the values of each slice and its queries, from the `values` of each query.

    The values with the most queries come first, each as a slice of its own. Then come the others
    together, and what has no value.
    """
    queries: defaultdict[str | None, list[str]] = defaultdict(list)
    for query, of_query in values.items():
        for value in of_query:
            queries[value].append(query)
    without = queries.pop(None, [])
    ordered = sorted(queries, key=lambda value: -len(queries[value]))
    for value in ordered[:SLICES]:
        yield frozenset([value]), queries[value]
    if others := frozenset(ordered[SLICES:]):
        yield others, [query for query, of_query in values.items() if others & set(of_query)]
    if without:
        yield frozenset([None]), without


def _slice(
    values: frozenset[str | None],
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    known: Mapping[str, Sequence[str]],
    *,
    k: int,
) -> Slice:
    """Compare the rankings of one slice, which has one value or several."""
    shares = [overlaps(ranking, right[query], k) for query, ranking in left.items()]
    judged, quality = _quality(left, right, known, k)
    return Slice(
        value=next(iter(values)) if len(values) == 1 else None,
        others=len(values) if len(values) > 1 else 0,
        agreement=_agreement(left, right, shares, k=k),
        judged=judged,
        quality=quality,
    )


def _corrected(slices: Sequence[Slice]) -> Iterator[Slice]:
    """Yield the slices with p-values that are corrected for their number, metric by metric."""
    qualities: list[dict[str, PairedTest]] = [dict(one.quality) for one in slices]
    for metric in {name: None for quality in qualities for name in quality}:
        tested = [quality for quality in qualities if metric in quality]
        corrected = holm([quality[metric].p for quality in tested])
        for quality, p in zip(tested, corrected, strict=True):
            quality[metric] = replace(quality[metric], p=p)
    for one, quality in zip(slices, qualities, strict=True):
        yield replace(one, quality=quality)


def holm(p: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests (Holm, 1979).

    If nothing differs, the probability that any corrected p is below 0.05 is at most 0.05.
    """
    corrected, highest = [1.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[place]))
        corrected[place] = highest
    return corrected


def _agreement(
    left: Mapping[str, Keywords],
    right: Mapping[str, Keywords],
    shares: Sequence[Sequence[float]],
    *,
    k: int,
) -> Agreement:
    """Average over all queries, whose overlaps at depths 1 to k are `shares`."""
    pairs = [(ranking, right[query]) for query, ranking in left.items()]
    steps = [step for pair in pairs for step in rank_changes(*pair).values()]
    ours, theirs = (sum(map(len, side)) for side in zip(*pairs, strict=True))
    return Agreement(
        queries=len(pairs),
        keywords=(ours, theirs),
        unchanged=sum(ids(one) == ids(other) for one, other in pairs),
        overlaps={depth: fmean(each[depth - 1] for each in shares) for depth in (1, 5, k)},
        moved=fmean(map(abs, steps)) if steps else 0.0,
        up=sum(step > 0 for step in steps),
        down=sum(step < 0 for step in steps),
        new=theirs - len(steps),
        gone=ours - len(steps),
    )


def ids(ranking: Keywords) -> list[str]:
    """Return the label ids of a ranking, the best first."""
    return [keyword["id"] for keyword in ranking]
