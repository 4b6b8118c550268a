import json
from pathlib import Path

from training.datasets.samples import emoji_names


def test_names_without_skin_tones_and_incomplete_spellings(tmp_path: Path) -> None:
    folder = tmp_path / "unicode_codes"
    folder.mkdir()
    english = {
        "🐦": {"en": ":black_bird:", "status": 2, "alias": [":raven:"]},
        "👋🏽": {"en": ":waving_hand_medium_skin_tone:", "status": 2},
        "☺": {"en": ":smiling_face:", "status": 4},
    }
    (folder / "emoji.json").write_text(json.dumps(english))
    for language in emoji_names.LANGUAGES:
        names = dict.fromkeys(english, ":schwarzer_vogel:") if language == "de" else {}
        (folder / f"emoji_{language}.json").write_text(json.dumps(names))
    assert list(emoji_names.rows(tmp_path)) == [
        ("raven", ["black bird"]),
        ("schwarzer vogel", ["black bird"]),
    ]
