"""Names of emoji in many languages, and the English name: short texts, one label for most.

From the PyPI package `emoji` (names from Unicode CLDR). A row is the name in another language, or
another English name; its labels are the emoji's English name without the skin tones, which would
make most rows near-copies of each other. 25,512 rows, 1,927 labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from training.datasets.samples.build import read_json

LANGUAGES = ("ar", "de", "es", "fa", "fr", "id", "it", "ja", "ko", "pt", "ru", "tr", "zh")
SKIN_TONES = frozenset(chr(code) for code in range(0x1F3FB, 0x1F400))
FULLY_QUALIFIED = 2  # the package's word for an emoji in its complete spelling


def rows(folder: Path | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield (a name, [the English name]); `folder` is that of the package, or it is installed."""
    english = read_json("emoji", "unicode_codes/emoji.json", folder)
    used = {
        emoji: entry
        for emoji, entry in english.items()
        if entry["status"] <= FULLY_QUALIFIED and not SKIN_TONES.intersection(emoji)
    }
    for entry in used.values():
        for alias in entry.get("alias", ()):
            yield _words(alias), [_words(entry["en"])]
    for language in LANGUAGES:
        names = read_json("emoji", f"unicode_codes/emoji_{language}.json", folder)
        for emoji, entry in used.items():
            if emoji in names:
                yield _words(names[emoji]), [_words(entry["en"])]


def _words(name: str) -> str:
    """`:grinning_face:` as words."""
    return name.strip(":").replace("_", " ")
