"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def markdown_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int
) -> Iterator[str]:
    """Lines of a Markdown table; all but the first `texts` columns are aligned to the right."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * texts}{'---:|' * (len(headings) - texts)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
