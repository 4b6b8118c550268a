"""Rules for tests, over the labels of the tiny catalogue and those that histories post."""

from service.core.rules import Boost, Pin, Rule
from tests.support.label_filters import FILTERS
from tests.support.tiny.bundles import LABELS

FIRST, SECOND, *_ = LABELS

RULES = (
    Rule(id="hide", query="tent for the trail", match="exact", hide=(FIRST, "new-1")),
    Rule(id="hide", hide=(SECOND,)),
    Rule(id="pin", query="trail", match="phrase", pins=(Pin(id="new-2", position=1),)),
    Rule(
        id="pins",
        query="boots light",
        match="contains",
        pins=(Pin(id=SECOND, position=2), Pin(id=FIRST, position=1)),
        starts_at=10,
    ),
    Rule(id="boost", boost=Boost(factor=3.0, labels=(SECOND, "new-3")), expires_at=20),
    Rule(id="boost", query="light", match="phrase", boost=Boost(factor=0.25, filter=FILTERS[0])),
    Rule(id="filter", query="boots", match="contains", filter=FILTERS[2], starts_at=5),
    Rule(id="filter", filter=FILTERS[1], boost=Boost(factor=2.0, filter=FILTERS[2])),
)
