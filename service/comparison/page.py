"""The comparison as one self-contained HTML page, as lines for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from string import Template

import orjson

from service.comparison.comparison import (
    CONFIDENCE,
    DRAWS,
    SLICES,
    TEN,
    Agreement,
    ChangedQuery,
    Comparison,
    PairedTest,
    Slice,
    is_known,
    rank_changes,
)
from service.core.errors import ECHOED_CHARACTERS
from service.core.prediction.reliability import PRECISIONS, Reliability

CHANCE = 0.05  # a difference with a smaller p counts as significant


def page(comparison: Comparison) -> str:
    """Return the page. Texts of bundles and of the queries' file are escaped."""
    ours, theirs = map(escape, comparison.names)
    body = [
        f"<h1>{ours} and {theirs}</h1>",
        f"<p>A is {ours}, B is {theirs}: the first {comparison.k} keywords of both for"
        f" {comparison.agreement.queries:,} queries.</p>",
        *_agreement(comparison.agreement),
        *_memory(comparison),
        *_quality(comparison),
        *_slices(comparison),
        *_reliability(comparison),
        *_changed(comparison),
    ]
    template = resources.files("service.comparison").joinpath("page.html").read_text("utf-8")
    return Template(template).substitute(title=f"{ours} and {theirs}", body="\n".join(body))


def summary(comparison: Comparison) -> Iterator[str]:
    """Yield the comparison in a few lines."""
    agreement = comparison.agreement
    shares = ", ".join(f"@{depth} {share:.1%}" for depth, share in agreement.overlaps.items())
    yield f"A {comparison.names[0]}, B {comparison.names[1]}: {agreement.queries:,} queries"
    yield f"overlap {shares}; {agreement.unchanged:,} queries unchanged"
    yield from memory_lines(comparison)
    for metric, test in comparison.quality.items():
        yield (
            f"{metric}: A {test.left:.2%}, B {test.right:.2%}, difference {_points(test)} points,"
            f" p = {test.p:.4f}; B wins {test.wins:,}, loses {test.losses:,}: {verdict(test)}"
        )
    for side, found in zip("AB", comparison.reliability, strict=True):
        if found is not None:
            yield (
                f"confidences of {side}: calibration error {found.error:.1f} points; answered"
                f" with a precision of first keywords: {_answered(found)}"
            )
    if not comparison.quality:
        yield "quality: " + (
            "no query with known labels is left"
            if comparison.memories.one_sided
            else "no labels are known; name their columns by --label"
        )
    for name, slices in comparison.slices.items():
        yield f"queries by {_cut(name)}: {_count(slices)}"
        yield from (f"  {_line(one)}" for one in slices)
    for name, slices in comparison.label_slices.items():
        yield f"labels by {_cut(name)}: {_count(slices)}"
        for one in slices:
            ours, theirs = one.agreement.keywords
            yield f"  {_line(one, keywords=f', keywords: A {ours:,}, B {theirs:,}')}"


def as_json(comparison: Comparison) -> bytes:
    """Return the whole comparison as JSON; A is `left`, B is `right`."""
    form = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(comparison, default=sorted, option=form) + b"\n"  # sorted: known labels


def verdict(test: PairedTest) -> str:
    """Return the result of the test in words."""
    if test.p >= CHANCE:
        return "may be chance"
    return "B is better" if test.difference > 0 else "A is better"


def _agreement(agreement: Agreement) -> Iterator[str]:
    yield "<h2>How far the answers agree</h2>"
    yield (
        "<p>Overlap@d is the share of labels that the first d keywords of A and B have in"
        " common, in the mean over all queries.</p>"
    )
    rows = [(f"overlap@{depth}", f"{share:.1%}") for depth, share in agreement.overlaps.items()]
    rows += [
        ("queries with equal answers", f"{agreement.unchanged:,}"),
        ("keywords only in B", f"{agreement.new:,}"),
        ("keywords only in A", f"{agreement.gone:,}"),
        ("keywords of both that moved up in B", f"{agreement.up:,}"),
        ("keywords of both that moved down in B", f"{agreement.down:,}"),
        ("places that a keyword of both moved, mean", f"{agreement.moved:.2f}"),
    ]
    yield from _table((), rows)


def memory_lines(comparison: Comparison) -> Iterator[str]:
    """Say which queries are instances of the memories, and how these are answered."""
    memories = comparison.memories
    if memories.left or memories.right:
        yield (
            f"queries that are instances of the memory: A {memories.left:,}, B"
            f" {memories.right:,}, both {memories.both:,}. They show how known queries are"
            " answered, not new ones"
        )
    if memories.one_sided:
        yield (
            f"the {memories.one_sided:,} queries that only one memory has are not judged: it would"
            " seem better for that alone (a bundle without test rows: `export bundle"
            " --hold-out-test`)"
        )
    if memories.known is not None:
        ours, theirs = memories.known
        yield (
            f"known queries ({memories.both:,} of both memories, {memories.clicks:,.0f} clicks):"
            f" the most clicked keyword is first for A {ours.first:.1%}, B {theirs.first:.1%} of"
            f" the clicks ({100 * (theirs.first - ours.first):+.2f} points), among the first"
            f" {min(TEN, comparison.k)} for A {ours.in_ten:.1%}, B {theirs.in_ten:.1%}"
            f" ({100 * (theirs.in_ten - ours.in_ten):+.2f} points)"
        )


def _memory(comparison: Comparison) -> Iterator[str]:
    lines = list(memory_lines(comparison))
    if lines:
        yield "<h2>Which queries the memories have</h2>"
        yield from (f"<p>{escape(line)}.</p>" for line in lines)


def _quality(comparison: Comparison) -> Iterator[str]:
    yield "<h2>How good they are</h2>"
    if not comparison.quality:
        left = comparison.memories.one_sided
        why = "No query with known labels is left" if left else "The file names no known labels"
        yield f"<p>{why}, so nothing is said about quality.</p>"
        return
    yield (
        f"<p>Over the {comparison.judged:,} queries with known labels. P@d is the share of the"
        f" first d places that hold a known label, R@{comparison.k} the share of known labels"
        f" among the first {comparison.k} keywords. B wins a query where its metric is higher."
        f" p is that of a paired randomisation test, the interval ({CONFIDENCE} %, in points)"
        f" that of a paired bootstrap, with {DRAWS:,} draws each.</p>"
    )
    columns = ("", "A", "B", "B - A", "interval", "p", "B wins", "B loses", "equal")
    yield from _table(
        columns,
        (
            (
                f"{metric}\n{verdict(test)}",
                f"{test.left:.2%}",
                f"{test.right:.2%}",
                _points(test),
                f"{100 * test.low:+.2f} to {100 * test.high:+.2f}",
                f"{test.p:.4f}",
                f"{test.wins:,}",
                f"{test.losses:,}",
                f"{test.ties:,}",
            )
            for metric, test in comparison.quality.items()
        ),
    )


def _slices(comparison: Comparison) -> Iterator[str]:
    """Yield a table per column, and one per metadata field."""
    k = comparison.k
    tested = ""
    if comparison.quality:
        tested = (
            " Queries with known labels are judged. Every p is corrected for the number of slices"
            " (Holm)."
        )
    for name, slices in comparison.slices.items():
        yield f"<h2>Queries by {escape(_cut(name))}</h2>"
        yield (
            f"<p>The same figures for the queries of each value: {_count(slices)}. A query with"
            f" several values counts for each.{tested}</p>"
        )
        yield from _slice_table(slices, ("queries", f"overlap@{k}"))
    for name, slices in comparison.label_slices.items():
        yield f"<h2>Labels by {escape(_cut(name))}</h2>"
        yield (
            f"<p>The labels of each value alone: {_count(slices)}. Queries are those with such a"
            f" keyword or known label. R@{k} is the share of these known labels among the first"
            f" {k} keywords. A label with several values counts for each.{tested}</p>"
        )
        yield from _slice_table(slices, ("queries", "in A", "in B", "only in A", "only in B"))


def _slice_table(slices: Sequence[Slice], figures: Sequence[str]) -> Iterator[str]:
    metrics = list(dict.fromkeys(metric for one in slices for metric in one.quality))
    tested = [f"{metric} {of}".strip() for metric in metrics for of in ("A", "B", "p")]
    rows = []
    for one in slices:
        agreement = one.agreement
        said = {
            "queries": f"{agreement.queries:,}",
            **{f"overlap@{depth}": f"{share:.1%}" for depth, share in agreement.overlaps.items()},
            "in A": f"{agreement.keywords[0]:,}",
            "in B": f"{agreement.keywords[1]:,}",
            "only in A": f"{agreement.gone:,}",
            "only in B": f"{agreement.new:,}",
        }
        cells = [said[figure] for figure in figures]
        cells += [f"{one.judged:,}"] if metrics else []
        for metric in metrics:
            test = one.quality.get(metric)
            cells += (
                ("", "", "")
                if test is None
                else (f"{test.left:.1%}", f"{test.right:.1%}", f"{test.p:.4f}")
            )
        words = f"\n{_slice_verdict(one)}" if one.quality else ""
        rows.append((f"{_name(one)}{words}", *cells))
    yield from _table(("", *figures, *(["judged"] if metrics else []), *tested), rows)


def _line(one: Slice, *, keywords: str = "") -> str:
    depth, share = max(one.agreement.overlaps.items())
    line = f"{_name(one)}: {one.agreement.queries:,} queries{keywords}; overlap@{depth} {share:.1%}"
    for metric, test in one.quality.items():
        line += f"; {metric}: A {test.left:.1%}, B {test.right:.1%}"
    return f"{line}: {_slice_verdict(one)}" if one.quality else line


def _slice_verdict(one: Slice) -> str:
    """Return the results of the slice's tests in words, such as "A is better (P@1, P@5)"."""
    metrics: dict[str, list[str]] = {}
    for metric, test in one.quality.items():
        if test.p < CHANCE:
            metrics.setdefault(verdict(test), []).append(metric)
    found = (f"{words} ({', '.join(names)})" for words, names in metrics.items())
    return "; ".join(found) or "may be chance"


def _name(one: Slice) -> str:
    if one.others:
        return f"({one.others:,} other values)"
    return "(no value)" if one.value is None else _cut(one.value)


def _count(slices: Sequence[Slice]) -> str:
    """Say how many values there are, and which have no slice of their own."""
    others = next((one for one in slices if one.others), None)
    values = sum(one.value is not None for one in slices)
    if others is None:
        return f"{values:,} values"
    values += others.others
    said = f"{values:,} values; the {SLICES} with most queries, and the others together"
    if others.agreement.queries < 2 * others.others:
        said += " (each of these has few queries; name one that has fewer values)"
    return said


def _cut(text: str) -> str:
    """Return a column's name or a value in one printable line that is not too long."""
    line = "".join(one if one.isprintable() else " " for one in text)
    return line if len(line) <= ECHOED_CHARACTERS else f"{line[:ECHOED_CHARACTERS]}…"


def _reliability(comparison: Comparison) -> Iterator[str]:
    """Yield a table of confidences, if a side has them."""
    sides = [
        (side, found)
        for side, found in zip("AB", comparison.reliability, strict=True)
        if found is not None
    ]
    if not sides:
        return
    yield "<h2>How far confidences can be believed</h2>"
    yield (
        "<p>Keywords of queries with known labels, by their confidence: its mean, and the share"
        " that is a known label. The calibration error is the mean gap between both, in points."
        " The last rows say how many queries can be answered, if the surest are answered first,"
        " so that this share of first keywords is a known label.</p>"
    )
    names = (f"{side} {figure}" for side, _ in sides for figure in ("keywords", "mean", "known"))
    by_tenth = [{one.low: one for one in found.bins} for _, found in sides]
    rows: list[tuple[str, ...]] = []
    for low in sorted({low for bins in by_tenth for low in bins}):
        cells = [f"from {low:.1f}"]
        for bins in by_tenth:
            one = bins.get(low)
            cells += (
                ("", "", "")
                if one is None
                else (f"{one.keywords:,}", f"{one.confidence:.1%}", f"{one.relevant:.1%}")
            )
        rows.append(tuple(cells))
    yield from _table(("", *names), rows)
    facts = [("calibration error", *(f"{found.error:.1f}" for _, found in sides))]
    facts += [
        (f"answered at {goal} %", *(f"{found.answered[goal]:.1f} %" for _, found in sides))
        for goal in PRECISIONS
    ]
    yield from _table(("", *(side for side, _ in sides)), facts)


def _answered(found: Reliability) -> str:
    return ", ".join(f"{share:.1f} % at {goal} %" for goal, share in found.answered.items())


def _changed(comparison: Comparison) -> Iterator[str]:
    yield "<h2>What changes most</h2>"
    if not comparison.changed:
        yield "<p>Every query has the same keywords in the same order.</p>"
        return
    yield (
        f"<p>The {len(comparison.changed)} queries with the smallest average overlap: the mean of"
        f" overlap@1 to overlap@{comparison.k}, in which the first places count most. Behind a"
        " keyword of B stands by how many places it moved; known labels are marked.</p>"
    )
    for changed in comparison.changed:
        yield from _lists(changed)


def _lists(changed: ChangedQuery) -> Iterator[str]:
    yield f"<h3>{escape(changed.query)}</h3>"
    known = f"; known: {escape(', '.join(sorted(changed.known)))}" if changed.known else ""
    yield f'<p class="soft">average overlap {changed.agreement:.1%}{known}</p>'
    steps = rank_changes(changed.left, changed.right)
    yield '<div class="wide"><table class="lists">'
    yield "<thead><tr><th></th><th>A</th><th>B</th></tr></thead><tbody>"
    for place in range(max(len(changed.left), len(changed.right))):
        yield f"<tr><td>{place + 1}</td>"
        for ranking, moved in ((changed.left, None), (changed.right, steps)):
            if place >= len(ranking):
                yield "<td></td>"
                continue
            keyword = ranking[place]
            mark = ' class="known"' if is_known(keyword, changed.known) else ""
            move = "" if moved is None else _move(moved.get(keyword["id"]))
            yield f"<td{mark}>{escape(keyword['text'])}{move}</td>"
        yield "</tr>"
    yield "</tbody></table></div>"


def _move(step: int | None) -> str:
    if step is None:
        return ' <span class="soft">new</span>'
    if not step:
        return ""
    kind, arrow = ("good", "↑") if step > 0 else ("bad", "↓")
    return f' <span class="{kind}">{arrow}{abs(step)}</span>'


def _points(test: PairedTest) -> str:
    return f"{100 * test.difference:+.2f}"


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a table. A row's first cell is its name; a second line in it is the result in words."""
    yield '<div class="wide"><table>'
    if columns:
        yield f"<thead><tr>{''.join(f'<th>{escape(head)}</th>' for head in columns)}</tr></thead>"
    yield "<tbody>"
    for first, *cells in rows:
        name, _, words = map(escape, first.partition("\n"))
        said = f'<span class="soft">{words}</span>' if words else ""
        figures = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        yield f"<tr><th>{name}{said}</th>{figures}</tr>"
    yield "</tbody></table></div>"
