"""What the report's figures mean, each in a plain sentence that stands before its name is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """A plain sentence, and the names that stand for what it says."""

    meaning: str
    names: tuple[str, ...]


WORDS = (
    Word(
        meaning="Of a hundred queries, how many have a right keyword in first place.",
        names=("P@1",),
    ),
    Word(
        meaning="Of a hundred answers in the first three (or five) places, how many are right. A"
        " query with a single right keyword reaches 33 (or 20) at most.",
        names=("P@3", "P@5"),
    ),
    Word(
        meaning="Of a hundred keywords that are right for a query, how many are among its first ten"
        " (or hundred) answers, as the mean over all queries.",
        names=("R@10", "R@100"),
    ),
    Word(
        meaning="How near the first five places come to the best order, 100 being the best: a right"
        " keyword counts less the lower it stands.",
        names=("nDCG@5",),
    ),
    Word(
        meaning="The share of right answers in the first place (or the first five), where a keyword"
        " counts more the fewer training queries it has; 100 is the most that can be reached.",
        names=("PSP@1", "PSP@5"),
    ),
    Word(
        meaning="Of a hundred keywords that are right for any of the queries, how many are found at"
        " least once among the first five answers to a query they are right for.",
        names=("coverage@5",),
    ),
    Word(
        meaning="For each keyword, how well the queries that have it among their first five answers"
        " agree with those it is right for, 100 being full agreement; then the mean over keywords.",
        names=("F1@5",),
    ),
    Word(
        meaning="How much the training queries that are near a query weigh in its answer, against"
        " the texts of the keywords: 0 is the texts alone, 1 the training queries alone.",
        names=("λ", "lambda"),
    ),
    Word(
        meaning="How many of the nearest training queries and keywords vote for an answer.",
        names=("b",),
    ),
)
