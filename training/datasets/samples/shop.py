"""A shop's click log: queries, with the products that were clicked and how often.

It is made up, and the same each time. Its 3,000 products have titles such as "Norvik Aera 310
wireless headphones black"; one in ten is titled by brand and model alone. Half of the 15,000 clicks
come from 100 frequent queries ("wireless headphones", 403 clicks), each of which has one product
with seven clicks in ten. The other half come from rare queries ("norvik black headphones"), mostly
with one click. Many of these have all words of a frequent query, and some are misspelled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random

PRODUCTS, CLICKS, FREQUENT = 3_000, 15_000, 100
_FIRST_SHARE = 0.7  # of a frequent query's clicks that its best product has
_OTHERS = 5  # further products of a frequent query
_AGAIN, _MISSPELLED, _UNTITLED = 0.03, 0.06, 0.1
_COLORS = ("black", "white", "grey", "navy", "red", "green", "beige", "blue", "pink", "silver")
# The kinds of products, the most bought first, and what they may be.
_KINDS = {
    "headphones": "wireless bluetooth over-ear noise-cancelling sport studio folding",
    "dress": "evening summer wedding floral linen maxi cocktail",
    "running shoes": "women's men's trail lightweight waterproof cushioned",
    "jacket": "rain winter denim leather down hiking fleece",
    "backpack": "school laptop hiking travel waterproof small kids'",
    "coffee machine": "espresso filter automatic portable capsule",
    "phone case": "leather clear rugged magnetic slim",
    "office chair": "ergonomic mesh leather adjustable swivel",
    "desk lamp": "led dimmable folding clamp wireless",
    "water bottle": "insulated glass steel sport kids'",
    "sneakers": "women's men's kids' canvas leather high-top",
    "jeans": "slim straight women's men's stretch high-waist",
    "t-shirt": "cotton long-sleeve striped printed sport",
    "frying pan": "non-stick cast-iron ceramic large induction",
    "blanket": "wool fleece weighted cotton baby",
    "pillow": "memory-foam feather travel neck cooling",
    "sunglasses": "polarized sport round aviator kids'",
    "watch": "smart sport automatic leather diving",
    "speaker": "bluetooth portable waterproof bookshelf party",
    "keyboard": "mechanical wireless ergonomic compact gaming",
    "mouse": "wireless gaming ergonomic vertical silent",
    "monitor": "curved gaming 4k portable ultrawide",
    "tent": "family two-person camping ultralight pop-up",
    "sleeping bag": "winter summer down kids' mummy",
    "yoga mat": "thick cork travel non-slip foldable",
    "bicycle helmet": "kids' urban mountain folding light",
    "dumbbells": "adjustable neoprene rubber cast-iron hex",
    "rug": "wool outdoor washable round shaggy",
    "curtains": "blackout linen sheer thermal long",
    "bed sheets": "cotton linen flannel satin fitted",
    "towel": "bath beach microfiber cotton quick-dry",
    "knife set": "kitchen steel ceramic japanese damascus",
    "blender": "hand portable glass high-speed soup",
    "toaster": "two-slice four-slice retro steel long-slot",
    "vacuum cleaner": "cordless robot handheld bagless car",
    "garden hose": "expandable flexible heavy-duty drinking-water reel",
    "drill": "cordless hammer impact compact brushless",
    "toy train": "wooden electric baby musical magnetic",
    "puzzle": "wooden 1000-piece kids' 3d floor",
    "notebook": "dotted lined leather spiral pocket",
}
_ONSETS, _VOWELS = "b d f g h k l m n p r s t v".split(), "aeiou"
_CODAS = "n r l s x vik ra".split()


@dataclass(frozen=True, kw_only=True)
class _Product:
    """A product's title, and the words by which people ask for it."""

    title: str
    brand: str
    kind: str
    attributes: tuple[str, ...]
    color: str

    def query(self, chance: Random) -> str:
        """Return a query for this product: its kind, with some of its other words."""
        words = [*chance.sample(self.attributes, chance.randint(0, len(self.attributes)))]
        if chance.random() < 0.6:
            words.insert(0, self.brand)
        if chance.random() < 0.4:
            words.insert(chance.randint(0, len(words)), self.color)
        return " ".join([*words, self.kind]).lower()


def rows(source: None = None) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield (a query, the clicks on each product by title)."""
    chance = Random("shop")
    products = _products(chance)
    clicks: dict[str, Counter[str]] = {}
    for query, titles in _frequent(products, chance):
        clicks[query] = Counter(titles)
    left = CLICKS - sum(map(Counter.total, clicks.values()))
    for query, title in islice(_rare(products, chance), left):
        clicks.setdefault(query, Counter())[title] += 1
    yield from clicks.items()


def frequent_queries() -> list[str]:
    """Return the `FREQUENT` queries, the most clicked first."""
    kinds = [(kind, attributes.split()) for kind, attributes in _KINDS.items()]
    queries = [
        f"{attributes[place]} {kind}" if place >= 0 else kind
        for place in (0, -1, 1)
        for kind, attributes in kinds
    ]
    return queries[:FREQUENT]


def _products(chance: Random) -> list[_Product]:
    brands = [_name(chance).capitalize() for _ in range(120)]
    models = [_name(chance).capitalize() for _ in range(200)]
    kinds, products = list(_KINDS), []
    for number in range(PRODUCTS):
        # Each kind has its share of products, the first ones several times that of the last.
        kind = kinds[int(len(kinds) * chance.random() ** 1.7)]
        attributes = tuple(chance.sample(_KINDS[kind].split(), 2))
        brand, color = chance.choice(brands), chance.choice(_COLORS)
        name = f"{brand} {chance.choice(models)} {number}"
        title = name if chance.random() < _UNTITLED else f"{name} {' '.join(attributes)} {kind}"
        if title != name and chance.random() < 0.7:
            title += f" {color}"
        product = _Product(title=title, brand=brand, kind=kind, attributes=attributes, color=color)
        products.append(product)
    return products


def _frequent(products: list[_Product], chance: Random) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield each frequent query with its clicks; their numbers fall with the root of the rank."""
    queries = frequent_queries()
    shares = [(rank + 1) ** -0.5 for rank in range(len(queries))]
    counts = [round(CLICKS / 2 * share / sum(shares)) for share in shares]
    for query, count in zip(queries, counts, strict=True):
        meant = [
            product
            for product in products
            if query in (product.kind, *(f"{word} {product.kind}" for word in product.attributes))
        ]
        best, *others = chance.sample(meant, min(len(meant), 1 + _OTHERS))
        clicked = Counter({best.title: max(1, round(_FIRST_SHARE * count))})
        further = count - clicked[best.title]
        clicked.update(product.title for product in chance.choices(others, k=further))
        yield query, clicked


def _rare(products: list[_Product], chance: Random) -> Iterator[tuple[str, str]]:
    """Yield clicks, each a query and a title, without end; all products get some."""
    frequent = set(frequent_queries())
    for product in cycle(chance.sample(products, len(products))):
        while (query := product.query(chance)) in frequent:
            pass
        if chance.random() < _MISSPELLED:
            query = _misspelled(query, chance)
        for _ in range(1 if chance.random() > _AGAIN else chance.randint(2, 4)):
            yield query, product.title


def _name(chance: Random) -> str:
    """Return a made-up name of two or three syllables."""
    count = chance.randint(1, 2)
    syllables = [chance.choice(_ONSETS) + chance.choice(_VOWELS) for _ in range(count)]
    last = chance.choice(_ONSETS) + chance.choice(_VOWELS) + chance.choice(_CODAS)
    return "".join([*syllables, last])


def _misspelled(query: str, chance: Random) -> str:
    """Return a query with a letter left out, doubled, or swapped with the next one."""
    place = chance.randrange(1, len(query) - 1)
    before, letter, after = query[:place], query[place], query[place + 1 :]
    return chance.choice(
        [before + after, before + 2 * letter + after, before + after[0] + letter + after[1:]]
    )
