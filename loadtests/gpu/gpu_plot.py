"""The figure of the GPU benchmark: encoding, searching, saturation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtests.gpu.encoding import Encoding
from loadtests.gpu.searching import Searched
from loadtests.gpu.serving import Served


def draw(
    path: Path, encoding: Encoding, searched: Sequence[Searched], served: Sequence[Served]
) -> None:
    """Write a PNG with a panel for each of the three."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (encode, search, saturation) = pyplot.subplots(1, 3, figsize=(16, 4.8))
    for name, curve in encoding.curves().items():
        encode.plot(*zip(*curve, strict=True), "o-", label=name)
    encode.set(title="encoding a batch", xlabel="texts", ylabel="milliseconds", xscale="log")
    for size, milliseconds in by_batch(searched).items():
        search.plot([at.rows for at in searched], milliseconds, "o-", label=f"{size} queries")
    search.set(title="exact search", xlabel="rows", ylabel="milliseconds", xscale="log")
    for at in served:
        connections = [level.connections for level in at.levels]
        rates = [level.per_second for level in at.levels]
        saturation.plot(connections, rates, "o-", label=at.device)
    saturation.set(title="the service", xlabel="connections", ylabel="answers a second")
    for panel in (encode, search):
        panel.set_yscale("log")
    for panel in (encode, search, saturation):
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def by_batch(searched: Sequence[Searched]) -> Mapping[str, list[float]]:
    """Milliseconds by number of rows, for each number of queries in a batch."""
    sizes = searched[0].milliseconds if searched else {}
    return {size: [at.milliseconds[size] for at in searched] for size in sizes}
