r"""The words of a text: the lexical index finds rows by them, and keywords match queries by them.

Two texts are compared on one of two levels. What is searched is found by its *words* (`words_of`),
which fold whatever a hurried writer leaves out. Whether two texts are the *same* (`comparable`, for
`exact`) is stricter, because a letter with another accent, or another number, is something else:

|                                              | words            | the same                     |
|----------------------------------------------|------------------|------------------------------|
| case, width, compatibility forms             | do not count     | do not count                 |
| spaces and hyphens between letters           | do not count     | do not count                 |
| other punctuation, default-ignorables        | do not count     | do not count                 |
| vowel points (Arabic, Hebrew, Syriac)        | do not count     | do not count                 |
| accents: `caf\xe9`, `\u0439`, tones          | do not count     | count: often they are letters|
| symbols on a word: `c++`, `c#`, `$5`, `5%`   | count            | count                        |
| what joins digits: `1.5`, `3/4`, `16:9`      | counts           | counts                       |
| a sign before digits: `-5`; a grade: `a-`    | counts           | counts                       |
| marks that are always written: Indic vowels  | count            | count                        |

A compound or a code is a word as a whole, and each of its pieces is a word too, so every way to
write it finds the others:

| text             | words                               |
|------------------|-------------------------------------|
| `"Caf\xe9 Bars"` | `cafe`, `bars`                      |
| `"T-Shirt"`      | `tshirt`, `t`, `shirt`              |
| `"XK-4411b"`     | `xk4411b`, `xk`, `4411`, `b`        |
| `"men's"`        | `mens`                              |
| `"1.5 l"`        | `1.5`, `1`, `5`, `l`                |
| `"C++"`          | `c++`, `c`                          |

Scripts that are written without spaces are not cut: a run of their characters is one word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from service.core.text_identity import folded, shown
from service.core.types import MatchType

MOST_CHARACTERS = 64  # of a word; the rest of a longer one is ignored
_MOST_PIECES = 6  # of a compound that is also a word as a whole
_MOST_KINDS = 20_000  # that are kept: of all characters, they would take 100 MB

_APOSTROPHES = "'\u2019\u02bc"
_HYPHENS = "-\u2010\u2011\u2012\u2013\u2212"  # those that are also written for a minus
_HAMZA = "\u0653\u0654\u0655"  # Arabic marks that make other letters: accents, not vowel points
# Letters of Joining_Type=Join_Causing (ArabicShaping.txt): they lengthen a word for its looks.
_TATWEELS = "\u0640\u07fa\u0883\u0884\u0885"
_POINTED_SCRIPTS = ("HEBREW ", "ARABIC ", "SYRIAC ")
_LATIN_1 = 0xFF  # its other symbols (copyright, degree) are marks on words; later ones are pictures
_WRITTEN_MARKS = range(7, 10)  # combining classes of nuktas, kana voicing marks and viramas
# Kinds (see `_kind`) of characters that differ from their General_Category, and of categories; all
# other categories are letters.
_GIVEN_KINDS = {
    **dict.fromkeys(_APOSTROPHES, "A"),
    **dict.fromkeys(_HYPHENS, "H"),
    **dict.fromkeys(".,", "."),
    **dict.fromkeys("#%\u2030\u066a", "M"),  # symbols that Unicode counts as punctuation
    **dict.fromkeys(_TATWEELS, "O"),
    **dict.fromkeys(map(chr, range(0x1F3FB, 0x1F400)), "L"),  # skin tones
}
_KINDS_OF_CATEGORIES = {
    **dict.fromkeys(("Sm", "Sc"), "M"),
    "Nd": "D",
    **dict.fromkeys(("Cc", "Cf", "Sk", "Zs", "Zl", "Zp"), "P"),
    **dict.fromkeys(("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po"), "P"),
}


def _kind(character: str) -> str:
    """Return what a character is in a text, as one letter.

    | kind  | characters                                                                   |
    |-------|------------------------------------------------------------------------------|
    | `L`   | letters, marks that are always written, pictures, all that is yet unassigned |
    | `D`   | decimal digits                                                               |
    | `N`   | numbers that become digits when folded, such as superscripts and fractions   |
    | `C`   | combining accents, see `_without_accents`                                    |
    | `O`   | optional marks: vowel points and what lengthens a word                       |
    | `M`   | symbols: mathematical signs, currencies, `#`, `%`                            |
    | `H`   | hyphens and minus signs                                                      |
    | `.`   | points and commas                                                            |
    | `A`   | apostrophes                                                                  |
    | `P`   | other punctuation                                                            |
    | space | white space                                                                  |
    """
    if character.isspace():
        return " "
    category = unicodedata.category(character)
    if character in _GIVEN_KINDS:
        return _GIVEN_KINDS[character]
    if category[0] == "M":
        return _kind_of_mark(character, category)
    if category == "No" and unicodedata.normalize("NFKC", character)[0].isdecimal():
        return "N"
    if category == "So" and ord(character) <= _LATIN_1:
        return "P"
    return _KINDS_OF_CATEGORIES.get(category, "L")


def _kind_of_mark(character: str, category: str) -> str:
    """Return the kind of a combining mark; Unicode's names of marks say what they belong to."""
    name = unicodedata.name(character, "")
    if category == "Mc" or unicodedata.combining(character) in _WRITTEN_MARKS:
        return "L"
    if character in _HAMZA or name.startswith("COMBINING "):
        return "C"
    return "O" if name.startswith(_POINTED_SCRIPTS) else "L"


class _Kinds(dict[int, str]):
    """The kinds of characters by code point, for `str.translate`."""

    def __missing__(self, code: int) -> str:
        kind = _kind(chr(code))
        if len(self) < _MOST_KINDS:
            self[code] = kind
        return kind


_KINDS = _Kinds()


class _Patterns(NamedTuple):
    """Patterns for ASCII texts, or for the kinds of the characters of any other.

    A `chunk` is a short word with a grade's minus (`a-`). Or it is words with one or two signs
    between them, after a sign, currency or decimal point, and before symbols. Of a folded chunk,
    `lead` is what may stand before a number or a word, `atom` is a number or a word with the
    symbols behind it, and `piece` is its digits or its letters alone.
    """

    chunk: re.Pattern[str]
    lead: re.Pattern[str]
    atom: re.Pattern[str]
    piece: re.Pattern[str]

    @classmethod
    def of(
        cls, *, word: str, then: str, between: str, joins: str, letters: str, **kinds: str
    ) -> Self:
        """Return the patterns for character classes of the kinds."""
        first = rf"{word}{then}*"
        sign = "(?: (?<!{H}) {H} (?= {M}{{0,2}} {dot}? {D} ) )?".format(**kinds)
        point = "(?: (?<!{dot}) {dot} (?={D}) )?".format(**kinds)
        grade = rf"(?<!{word}) {{L}}{{{{1,2}}}} {{H}} (?!{word}|{{H}})".format(**kinds)
        symbols = "{M}{{0,2}}".format(**kinds)
        chunk = rf"{grade} | {sign} {symbols} {point} {first} (?:{between}{{1,2}}{first})* " + (
            "{M}{{0,3}}".format(**kinds)
        )
        return cls(
            chunk=re.compile(chunk, re.VERBOSE),
            lead=re.compile("{H}?{M}{{0,2}}{dot}?(?={D})|{M}{{0,2}}".format(**kinds)),
            # Folding may make six signs of one.
            atom=re.compile(
                f"(?:{{D}}+(?:{joins}{{{{1,6}}}}{{D}}+)*|{letters}){{M}}{{{{0,3}}}}".format(**kinds)
            ),
            piece=re.compile("{D}+|{L}+".format(**kinds)),
        )


_ASCII = _Patterns.of(
    word="[0-9A-Za-z]",
    then="[0-9A-Za-z]",
    between=r"[^\s0-9A-Za-z]",
    joins="[^ 0-9A-Za-z-]",
    letters="[A-Za-z]+",
    L="[A-Za-z]",
    D="[0-9]",
    M="[+\\#%$<=>|~]",
    H="[-]",
    dot="[.,]",
)
_ANY = _Patterns.of(
    word="[LDNCO]",
    then="(?:[LCO]|(?<!N)D|(?<!D)N)",  # a superscript or fraction beside digits is another chunk
    between="[^ LDNCO]",
    joins="[^ LCDNOH]",
    letters="C*L[LC]*",
    L="[LC]",
    D="[DN]",
    M="M",
    H="H",
    dot="[.]",
)
_BETWEEN_SPACES = re.compile("[^ ]+")
_LETTERS_THAT_VANISH = re.compile(f"[\u02bc{_TATWEELS}]")
_COMMON_ACCENTS = re.compile("[\u0300-\u036f]+")  # all are of the kind `C`
_SPACING_ACCENT = re.compile(" C+")
_QUOTED = re.compile(rf"(?<!\d)[{_APOSTROPHES}]|[{_APOSTROPHES}](?!\d)")
_ONE_WAY = str.maketrans({**dict.fromkeys(_HYPHENS, "-"), "\u2044": "/", "\u2215": "/"})


class Chunk(NamedTuple):
    """A part of a text between spaces: its place in the text, and its folded words.

    `pieces` are the parts of a compound or code, and empty for a plain word.
    """

    start: int
    stop: int
    whole: str
    pieces: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The words by which this chunk is found."""
        if not self.pieces:
            return (self.whole,)
        return (self.whole, *self.pieces) if len(self.pieces) <= _MOST_PIECES else self.pieces


def chunks_of(text: str) -> Iterator[Chunk]:
    """Yield the chunks of a text in order."""
    for start, stop, chunk in _cut(text):
        if chunk.isalpha() and chunk.isascii():
            yield Chunk(start, stop, chunk.lower()[:MOST_CHARACTERS], ())
            continue
        atoms = [_without_accents(atom) for atom in _atoms(chunk)]
        if atoms:
            whole = "".join(atoms)[:MOST_CHARACTERS]
            pieces = tuple(piece[:MOST_CHARACTERS] for atom in atoms for piece in _pieces(atom))
            yield Chunk(start, stop, whole, () if pieces == (whole,) else pieces)


def words_of(text: str) -> list[str]:
    """Return the distinct words of a text, in the order of their first place."""
    if _is_plain(text):
        return list(dict.fromkeys(text.lower().split()))
    return list(dict.fromkeys(word for chunk in chunks_of(text) for word in chunk.words))


def is_spelled(word: str) -> bool:
    """Return whether a word has letters alone, so that typing errors may change it."""
    return word.isalpha() or not set(word.translate(_KINDS)).difference("LC")


def comparable(text: str) -> str:
    r"""Return what two texts have in common if they are the same for `exact`; see the module.

    Letters are compared however they are spaced, numbers and symbols as they are grouped.

    | text                                | comparable         |
    |-------------------------------------|--------------------|
    | `"T-Shirts, RED!"`, `"t shirts red"`| `"tshirtsred"`     |
    | `"XK-4411"`, `"xk 4411"`, `"xk4411"`| `"xk4411"`         |
    | `"44-11"`, `"44 11"`                | `"44 11"`          |
    | `"1.5 l"`; `"15 l"`                 | `"1.5l"`; `"15l"`  |
    | `"1\xbd"`, `"1 1/2"`                | `"1 1/2"`          |
    | `"C++"`; `"C#"`; `"C"`              | `"c++"`, `"c#"`, `"c"` |
    | `"-5"`; `"A-"`                      | `"-5"`; `"a-"`     |
    | `"caf\xe9"`; `"cafe"`               | `"caf\xe9"`; `"cafe"` |
    """
    if _is_plain(text):
        return "".join(text.lower().split())
    return _joined([atom for _, _, chunk in _cut(text) for atom in _atoms(chunk)])


def _is_plain(text: str) -> bool:
    """Return whether a text has only ASCII letters and spaces, as most have.

    Its chunks are what `str.split` finds, in a fifth of the time.
    """
    return len(text) <= MOST_CHARACTERS and text.isascii() and text.replace(" ", "").isalpha()


def _cut(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the stop and the characters that count of each chunk of a text."""
    if text.isascii():
        for found in _ASCII.chunk.finditer(text):
            yield found.start(), found.end(), found.group()
        return
    counting = shown(text)
    places = None if len(counting) == len(text) else _places(counting, text)
    letters = counting.replace(" ", "").isalpha()  # as most are: then the kinds say no more
    for found in (_BETWEEN_SPACES if letters else _ANY.chunk).finditer(
        counting if letters else counting.translate(_KINDS)
    ):
        start, stop = found.span()
        chunk = counting[start:stop]
        if places is None:
            yield start, stop, chunk
        else:
            yield places[start], places[stop], chunk


def _places(few: str, text: str) -> list[int]:
    """Return the places in `text` of its characters that are in `few`, and the end of `text`."""
    places, place = [], -1
    for character in few:
        place = text.index(character, place + 1)
        places.append(place)
    return [*places, len(text)]


def _atoms(chunk: str) -> list[str]:
    """Return the parts of a chunk that are never cut: words and numbers with their symbols.

    They are folded, without optional marks, apostrophes of words, and what separates them.
    """
    plain = chunk.lower() if chunk.isascii() else folded(chunk)
    if plain.isalpha() and not _LETTERS_THAT_VANISH.search(plain):
        return [plain]
    plain, kinds, patterns = _with_kinds(plain)
    lead = patterns.lead.match(kinds)
    start = lead.end() if lead else 0
    spans = [found.span() for found in patterns.atom.finditer(kinds, start)]
    atoms = [plain[first:stop] for first, stop in spans]
    if atoms and spans[0][0] == start:
        atoms[0] = plain[:start] + atoms[0]
    if atoms and plain.endswith("-") and len(plain) - spans[-1][1] == 1:
        atoms[-1] += "-"
    return atoms


def _with_kinds(plain: str) -> tuple[str, str, _Patterns]:
    """Return a folded chunk as its atoms are cut from, its kinds, and the patterns for these."""
    if plain.isascii():
        plain = _QUOTED.sub("", plain) if "'" in plain else plain
        return plain, plain, _ASCII
    plain = _QUOTED.sub("", plain.translate(_ONE_WAY))
    kinds = plain.translate(_KINDS)
    kinds = _SPACING_ACCENT.sub(lambda found: "P" + "O" * (len(found.group()) - 1), kinds)
    if "O" in kinds:
        both = [(one, kind) for one, kind in zip(plain, kinds, strict=True) if kind != "O"]
        plain = "".join("`" if one == " " and kind == "P" else one for one, kind in both)
        kinds = kinds.replace("O", "")
    return plain, kinds, _ANY


def _pieces(atom: str) -> list[str]:
    """Return the pieces of a folded atom: its digits and its letters."""
    if atom.isalpha() or atom.isdecimal():
        return [atom]
    if atom.isascii():
        return _ASCII.piece.findall(atom)
    found = _ANY.piece.finditer(atom.translate(_KINDS))
    return [atom[piece.start() : piece.end()] for piece in found]


def _joined(atoms: Sequence[str]) -> str:
    """Return atoms as one, with a space between two of which neither has a letter there."""
    if len(atoms) < 2:
        return "".join(atoms)
    apart = (left[-1].isalpha() or right[0].isalpha() for left, right in pairwise(atoms))
    return atoms[0] + "".join(
        atom if letters else f" {atom}" for letters, atom in zip(apart, atoms[1:], strict=True)
    )


def _without_accents(text: str) -> str:
    """Return a folded text without the accents that readers do without.

    These are the marks that Unicode names "combining": those of Latin, Greek and Cyrillic letters,
    also where a letter with one is another letter. So are the Arabic hamza and madda.
    """
    if text.isascii() or (text.isalpha() and unicodedata.is_normalized("NFD", text)):
        return text
    apart = unicodedata.normalize("NFD", text)
    bare = _COMMON_ACCENTS.sub("", apart)
    if not bare.isalnum():  # it may have other marks
        kinds = bare.translate(_KINDS)
        bare = "".join(one for one, kind in zip(bare, kinds, strict=True) if kind != "C")
    return text if bare is apart else unicodedata.normalize("NFC", bare)


class TypedQuery:
    """A query, with which keywords are compared: how they match, in the terms of sponsored search.

    | type     | the keyword's words                      | of "Red T-shirts"             |
    |----------|------------------------------------------|-------------------------------|
    | `exact`  | are the query's, however they are spaced | `red tshirts`, `RED T SHIRTS` |
    | `phrase` | are all in the query, in this order      | `t-shirts`, `red shirts`      |
    | `broad`  | are others: it is found by its meaning   | `shirts red`, `red jacket`    |

    `exact` compares texts by `comparable`, where accents count. In the words of the other types
    they do not, but numbers and symbols are not cut: `5 l` is no phrase in `1.5 l`.
    """

    def __init__(self, query: str) -> None:
        """Compare keywords with `query`: its words as wholes, and with compounds in pieces."""
        self.wholes, self.pieces, self.joined = _in_words(query)

    @property
    def words(self) -> set[str]:
        """All words of the query, wholes and pieces."""
        return {*self.wholes, *self.pieces}

    def match(self, *texts: str) -> MatchType:
        """Return how a keyword with these texts matches the query: the text that matches best."""
        best: MatchType = "broad"
        for text in texts:
            wholes, pieces, joined = _in_words(text)
            if not wholes:
                continue
            if joined == self.joined:
                return "exact"
            if in_order(wholes, self.wholes) or in_order(pieces, self.pieces):
                best = "phrase"
        return best

    def contains(self, text: str) -> bool:
        """Return whether all words of `text` are in the query, in any order."""
        wholes, pieces, _ = _in_words(text)
        words = self.words
        return bool(wholes) and (words.issuperset(wholes) or words.issuperset(pieces))


def _in_words(text: str) -> tuple[Sequence[str], Sequence[str], str]:
    """Return the words of a text in order, the same with compounds in pieces, and `comparable`."""
    if _is_plain(text):
        wholes = text.lower().split()
        return wholes, wholes, "".join(wholes)
    chunks = [atoms for _, _, chunk in _cut(text) if (atoms := _atoms(chunk))]
    bare = [[_without_accents(atom) for atom in atoms] for atoms in chunks]
    pieces = [piece for atoms in bare for piece in atoms]
    return [*map(_joined, bare)], pieces, _joined([atom for atoms in chunks for atom in atoms])


def in_order(few: Iterable[str], many: Iterable[str]) -> bool:
    """Return whether all of `few` are among `many`, in the same order."""
    rest = iter(many)
    for word in few:  # `all` would take three times as long
        if word not in rest:
            return False
    return True
