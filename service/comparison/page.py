"""The comparison as one self-contained HTML page, and as lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib import resources
from string import Template

from service.comparison.comparison import (
    CONFIDENCE,
    DRAWS,
    Agreement,
    ChangedQuery,
    Comparison,
    PairedTest,
    is_known,
    rank_changes,
)
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
        *_quality(comparison),
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
        yield "quality: no labels are known; name their columns by --label"


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


def _quality(comparison: Comparison) -> Iterator[str]:
    yield "<h2>How good they are</h2>"
    if not comparison.quality:
        yield "<p>The file names no known labels, so nothing is said about quality.</p>"
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
