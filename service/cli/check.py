"""`keymatch check`: verify a bundle without serving it."""

from __future__ import annotations

from service.command_line import DEFAULT_CACHE, CacheOption, say


def check(*, bundle: str, cache: CacheOption = DEFAULT_CACHE) -> int:
    """Verify the checksum and the numbers of every file of a bundle, and answer one query from it.

    The encoder also encodes a text that exceeds its token limit.

    A start and a reload skip three slow checks: here the graph's vectors are compared with the
    keys, the order of the labels' ids is verified, and the details of posted labels are read.

    Parameters
    ----------
    bundle
        The bundle's folder or URL.
    cache
        Folder for copies of bundles that URLs name.
    """
    from service.core.bundle.bundle import open_bundle, require_sound
    from service.core.bundle.object_store import local_bundle
    from service.engine.trial import first_answer

    opened = open_bundle(local_bundle(bundle, cache))
    require_sound(opened)
    facts, answer = opened.manifest, first_answer(opened)
    first = answer.keywords[0].text if answer.keywords else None
    say(
        f"{bundle}: format {facts.version}, {len(facts.files)} files verified;"
        f" {facts.memory.instances:,} instances and {facts.memory.labels:,} labels of"
        f" {facts.dataset}; encoder {facts.encoder.name}, {facts.encoder.quantization},"
        f" d={facts.encoder.dimension}; {answer.query!r} -> {first!r}"
    )
    return 0
