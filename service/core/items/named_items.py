"""Items as a client names them: by id, or by text.

Shapes: m items.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.core.errors import InvalidInput, echoed
from service.core.items.item_memory import ItemMemory
from service.core.types import Rows


def places_of(memory: ItemMemory, names: Sequence[str]) -> Rows:
    """Return the places [m] of the items with these ids or texts, each once.

    A name is first looked for among the ids. Raises `InvalidInput` for one that no item has.
    """
    places: dict[int, None] = {}
    for number, name in enumerate(names):
        place = memory.find(name)
        place = memory.find_text(name) if place is None else place
        if place is None:
            raise InvalidInput(
                f"no item has the id or text {echoed(name)}", field=f"items.{number}"
            )
        places[place] = None
    return np.array(list(places), np.int64)
