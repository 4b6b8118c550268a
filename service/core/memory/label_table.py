"""The label table of one view: the bundle's labels, and the labels posted since.

The table is persistent: `put` and `delete` return a new table that shares all but a few nodes with
the old one. So each view keeps its own labels at little cost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from heapq import merge
from itertools import chain, islice
from operator import itemgetter

import numpy as np
from rpds import HashTrieMap

from service.core.bundle.label_details import LabelDetails
from service.core.errors import InvalidInput, UnknownLabel, echoed
from service.core.files.text_store import TextStore
from service.core.items.persistent_sets import SortedKeys
from service.core.label_filter import Metadata, metadata_bytes
from service.core.memory.label_fields import LabelFields, labels_of
from service.core.page_cursor import FIRST_PAGE, PageCursor
from service.core.tenant import NAMESPACE_END, Tenant
from service.core.text_identity import IdentityLookup, free_id, identity
from service.core.types import Bools, Floats, Indices, Label, NewLabel, label_as

_DELETED = -1
_FEW = 16  # labels that are asked one by one whose they are
MOST_BOOST = 1e6  # of one label, after all rules
_FIRST = 1e30  # a boost beyond all others
_NO_COLUMNS: Indices = np.zeros(0, np.int32)
NO_BOOSTS: Floats = np.zeros(0, np.float32)  # of a table: all labels have 1
# Estimated bytes of main memory, in addition to the rows (`test_live_bytes.py`).
BYTES_A_LABEL = 1_100  # the label's object, its identity, and its entries in the maps
BYTES_A_QUERY = 8  # only a reference: the text belongs to the row
BYTES_AN_ALIAS = 170  # a reference, and the row's entry among all rows of aliases
BYTES_AN_ENTRY = 270  # the objects of one metadata entry, and its place among the fields


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Labels by id and by column of V. Each label that is not in the bundle gets the next column.

    A deleted label's column is never used again, so its old votes cannot come back. `deleted` holds
    these columns, ascending. `live` holds the labels posted since the bundle by column. Their
    columns are in `column_by_id` by id, and in `identities` by the identity of their text, and by
    tenant if one posted them. `live_bytes` estimates the main memory that these labels take,
    without their rows. Unless the table is `namespaced`, no label has an id that a tenant chose.

    `fields` holds metadata, dates and boosts of all labels. In a table of some labels alone
    (`only`), `kept` is a bitmap over all columns; other labels seem to be deleted. It was made of
    the table `whole`, whose sorted ids it shares. `factors` [C]
    replace the boosts of labels in a table that is `boosted`. The table `of` a `tenant` reads and
    shows ids as the tenant knows them, and finds its labels alone.
    """

    base_ids: TextStore
    base_texts: TextStore
    base_details: LabelDetails
    base_identities: IdentityLookup
    columns: int
    live: HashTrieMap[int, Label] = field(default_factory=HashTrieMap)
    column_by_id: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    identities: SortedKeys = field(default_factory=SortedKeys)
    deleted: Indices = field(default_factory=_NO_COLUMNS.copy)
    live_bytes: int = 0
    namespaced: bool = False
    fields: LabelFields = field(default_factory=partial(LabelFields.of, ()))
    kept: bytes = b""
    whole: LabelTable | None = field(default=None, compare=False, repr=False)
    factors: Floats = field(default_factory=NO_BOOSTS.copy)
    tenant: Tenant | None = None

    def __len__(self) -> int:
        """Return the number of labels."""
        if self.kept:
            return int(np.bitwise_count(np.frombuffer(self.kept, np.uint8)).sum())
        return self.columns - len(self.deleted)

    @property
    def hides_votes(self) -> bool:
        """Whether rows may vote for labels that are not in the table."""
        return bool(self.kept) or len(self.deleted) > 0

    def only(self, columns: Bools) -> LabelTable:
        """Return a table of some labels alone, `columns` [C]; none of them was deleted."""
        kept = np.packbits(columns, bitorder="little").tobytes()
        return replace(self, kept=kept, whole=self)

    def without(self, columns: Sequence[int]) -> LabelTable:
        """Return a table in which the labels at these columns seem to be deleted."""
        table = self
        if not self.kept:
            every = np.ones(self.columns, bool)
            every[self.deleted] = False
            table = self.only(every)
        bits = bytearray(table.kept)
        for column in columns:
            bits[column >> 3] &= ~(1 << (column & 7))
        return replace(table, kept=bytes(bits))

    @property
    def boosts(self) -> Floats:
        """The factors of scores by which labels are ordered; 1 at columns beyond the array."""
        if len(self.factors) or not self.fields.boosted:  # mostly, none has a boost
            return self.factors
        return self.fields.boosts

    def boosted(self, boosts: Iterable[tuple[Sequence[int] | Bools, float]]) -> LabelTable:
        """Return a table in which the boosts of some labels are multiplied by factors, in order."""
        factors = self._own_factors()
        for columns, factor in boosts:
            factors[columns] = np.clip(factors[columns] * factor, 1 / MOST_BOOST, MOST_BOOST)
        return replace(self, factors=factors)

    def first(self, columns: Sequence[int]) -> LabelTable:
        """Return a table in which some labels stand before all others that have votes."""
        factors = self._own_factors()
        factors[columns] = _FIRST
        return replace(self, factors=factors)

    def _own_factors(self) -> Floats:
        """Return a copy of the boosts, [C]."""
        factors, known = np.ones(self.columns, np.float32), self.boosts
        factors[: len(known)] = known
        return factors

    def of(self, tenant: Tenant | None) -> LabelTable:
        """Return the table as a tenant sees it; None sees every label."""
        return self if tenant is None else replace(self, tenant=tenant)

    def column(self, label_id: str) -> int | None:
        """Return the column of a label id, or None if there is no such label or it was deleted."""
        if self.tenant is None:
            return self._stored_column(label_id)
        stored = map(self._stored_column, self.tenant.stored_ids(label_id))
        return next(
            (column for column in stored if column is not None and self._owns(column)), None
        )

    def shown_column(self, label_id: str) -> int | None:
        """Return the column of the label that the tenant sees under an id, or None.

        The tenant cannot change a label that it shares with others, and `column` does not find it.
        """
        if self.tenant is None:
            return self._stored_column(label_id)
        for column in map(self._stored_column, self.tenant.stored_ids(label_id)):
            if column is not None and self.tenant.finds(self.shown_at(column)[3]):
                return column
        return None

    def _stored_column(self, stored_id: str) -> int | None:
        column = self.column_by_id.get(stored_id)
        if column is None:
            column = self.base_ids.find(stored_id)
        if column is None or column == _DELETED:
            return None
        hidden = self.kept and not self.kept[column >> 3] >> (column & 7) & 1
        return None if hidden else column

    def _owns(self, column: int) -> bool:
        """Return whether the label at a column is the tenant's."""
        if self.tenant is None:
            return True
        label = self.live.get(column)
        return self.tenant.owns((self.base_details.at(column) if label is None else label).metadata)

    def get(self, label_id: str) -> Label | None:
        """Return the label with this id, or None if there is none or it was deleted."""
        column = self.column(label_id)
        return None if column is None else self.at(column)

    def require(self, label_id: str) -> Label:
        """Return the label with this id; raises `UnknownLabel` if there is none."""
        return self._required(self.column(label_id), label_id)

    def require_shown(self, label_id: str) -> Label:
        """Return the label of `shown_column`; raises `UnknownLabel` if there is none."""
        return self._required(self.shown_column(label_id), label_id)

    def _required(self, column: int | None, label_id: str) -> Label:
        if column is None:
            raise UnknownLabel(f"no label has the id {echoed(label_id)}", field="id")
        return self.at(column)

    def identified(self, label: NewLabel) -> NewLabel:
        """Return a label that is about to be put, with the id under which it is stored.

        A label without an id gets the id of the known label with the same text identity. If several
        labels have this identity, the label with the identity as its id is preferred, then the
        first column. If no label has it, the identity becomes the id (`free_id`). Aliases of known
        labels do not count.

        Raises `InvalidInput` if the id is stored for a label that is not the tenant's, or if a
        tenant would see two labels under one id.
        """
        stored = self._id_for(label)
        rival = self._rival(stored, label.metadata)
        if rival is not None and self.tenant is not None:
            raise _taken(self._shown(stored))  # says nothing of other tenants
        if rival is not None:
            raise InvalidInput(
                f"the tenant {echoed(str(rival))} has another label that it sees as"
                f" {echoed(rival.shown_id(stored))}; choose another id than {echoed(stored)}",
                field="id",
            )
        return label if stored == label.id else replace(label, id=stored)

    def _id_for(self, label: NewLabel) -> str:
        """Return the id under which a label is to be stored, see `identified`."""
        if label.id and self.tenant is None:
            return label.id
        wanted = label.id or identity(label.text)
        known = self.column(wanted)
        if not label.id and (known is None or identity(self.text_at(known)) != wanted):
            known = self._first_column(wanted)
        if known is not None:
            return self.stored_id_at(known)
        made = label.id or free_id(wanted, taken=lambda made: self._is_taken(made, label))
        if self.tenant is None:
            return made
        stored = self.tenant.stored_id(made)
        if self._stored_column(stored) is not None:  # it was posted without the tenant's value
            raise _taken(made)
        return stored

    def _is_taken(self, label_id: str, label: NewLabel) -> bool:
        """Return whether a new label cannot have an id."""
        stored = label_id if self.tenant is None else self.tenant.stored_id(label_id)
        taken = self.column(label_id) is not None or self._stored_column(stored) is not None
        return taken or self._rival(stored, label.metadata) is not None

    def _rival(self, stored_id: str, metadata: Metadata) -> Tenant | None:
        """Return a tenant that would see another label under the same id as this one, or None."""
        if not self.namespaced and NAMESPACE_END not in stored_id:
            return None
        for tenant in Tenant.named_in(metadata):
            column = self._stored_column(tenant.other_id(stored_id))
            if column is not None and tenant.finds(self.shown_at(column)[3]):
                return tenant
        return None

    def as_posted(self, label_id: str) -> NewLabel | None:
        """Return the label as a client would post it, or None if there is none."""
        label = self.get(label_id)
        return None if label is None else label_as(NewLabel, label)

    def at(self, column: int) -> Label:
        """Return the label of a column."""
        label = self.live.get(column)
        if label is not None:
            if self.tenant is None:
                return label
            metadata = self.tenant.shown_metadata(label.metadata)
            return replace(label, id=self._shown(label.id), metadata=metadata)
        details = self.base_details.at(column)
        return label_as(
            Label,
            details,
            index=column,
            id=self._shown(self.base_ids[column]),
            text=self.base_texts[column],
            metadata=self._shown_metadata(details.metadata),
        )

    def shown_at(self, column: int) -> tuple[str, tuple[str, ...], bool, Metadata]:
        """Return what answers show, in half the time of `at`: id, texts, `novel` and metadata.

        The texts are the label's text and its aliases.
        """
        label = self.live.get(column)
        if label is not None:
            texts = label.text, *label.aliases
            return self._shown(label.id), texts, label.novel, self._shown_metadata(label.metadata)
        details, label_id = self.base_details.at(column), self._shown(self.base_ids[column])
        texts = self.base_texts[column], *details.aliases
        return label_id, texts, details.novel, self._shown_metadata(details.metadata)

    def text_at(self, column: int) -> str:
        """Return the text of a column's label."""
        label = self.live.get(column)
        return self.base_texts[column] if label is None else label.text

    def texts_at(self, column: int) -> tuple[str, ...]:
        """Return the text and the aliases of a column's label."""
        label = self.live.get(column)
        if label is not None:
            return (label.text, *label.aliases)
        return (self.base_texts[column], *self.base_details.aliases_at(column))

    def id_at(self, column: int) -> str:
        """Return the label id of a column."""
        return self._shown(self.stored_id_at(column))

    def stored_id_at(self, column: int) -> str:
        """Return the id under which the label of a column is stored, whoever the tenant is."""
        label = self.live.get(column)
        return self.base_ids[column] if label is None else label.id

    def _shown(self, stored_id: str) -> str:
        return stored_id if self.tenant is None else self.tenant.shown_id(stored_id)

    def _shown_metadata(self, metadata: Metadata) -> Metadata:
        return metadata if self.tenant is None else self.tenant.shown_metadata(metadata)

    def put(self, label: Label) -> LabelTable:
        """Return a table that holds `label` at its column, an existing one or the next."""
        others = self._without_posted(label.index)
        return replace(
            others,
            columns=max(self.columns, label.index + 1),
            live=others.live.insert(label.index, label),
            column_by_id=self.column_by_id.insert(label.id, label.index),
            identities=others.identities.insert((_listed_as(label), label.index)),
            live_bytes=others.live_bytes + bytes_of_label(label),
            namespaced=self.namespaced or NAMESPACE_END in label.id,
            fields=others.fields.put(label, others.live),
        )

    def growth(self, column: int, label: NewLabel) -> int:
        """Return by how many bytes `live_bytes` grows if `label` replaces that at `column`."""
        known = self.live.get(column)
        return bytes_of_label(label) - (0 if known is None else bytes_of_label(known))

    def delete(self, label: Label) -> LabelTable:
        """Return a table without `label`."""
        place = int(np.searchsorted(self.deleted, label.index))
        return replace(
            self._without_posted(label.index),
            column_by_id=self.column_by_id.insert(label.id, _DELETED),
            deleted=np.insert(self.deleted, place, label.index),
        )

    def is_deleted(self, columns: Indices) -> Bools:
        """Return which of `columns` [n] belong to labels that are not in the table any more."""
        if self.kept:
            bits = np.frombuffer(self.kept, np.uint8)[columns >> 3]
            return np.asarray(bits >> (columns & 7).astype(np.uint8) & 1 == 0)
        if not len(self.deleted):
            return np.zeros(len(columns), bool)
        places = np.searchsorted(self.deleted, columns)
        places[places == len(self.deleted)] = 0
        return np.asarray(self.deleted[places] == columns)

    def page(
        self, *, after: PageCursor = FIRST_PAGE, size: int, every: bool = False
    ) -> list[Label]:
        """Return the first `size` labels after the cursor, by id.

        They are those posted since the bundle, or `every` label.
        """
        ids = self._live_ids
        above = islice(ids, bisect_right(ids, (after.prefix, self.columns)), None)
        entries = merge(self._base_above(after.prefix), above) if every else above
        columns = after.skip(entries, id_of=itemgetter(0))
        return [self.at(column) for _, column in islice(columns, size)]

    def _base_above(self, label_id: str) -> Iterator[tuple[str, int]]:
        """Yield ids and columns of the bundle's labels that were not posted since, ascending."""
        if self.tenant is not None:  # its ids are in another order than those that are stored
            ids = self._base_ids_of_tenant
            yield from islice(ids, bisect_right(ids, (label_id, self.columns)), None)
            return
        of_bundle = self.base_ids.above(label_id, lambda columns: ~self.is_deleted(columns))
        yield from ((one, column) for one, column in of_bundle if column not in self.live)

    @cached_property
    def _base_ids_of_tenant(self) -> list[tuple[str, int]]:
        columns = np.arange(len(self.base_ids), dtype=np.int32)
        kept = columns[~self.is_deleted(columns)].tolist()
        return sorted((self.id_at(column), column) for column in kept if column not in self.live)

    def _first_column(self, text_identity: str) -> int | None:
        """Return the first column of a label whose text has this identity, or None."""
        of_base = self.base_identities.places(text_identity, among=self._not_foreign)
        found = (filter(self._owns, of_base), self._posted_with(text_identity))
        return min((column for own in found for column in islice(own, 1)), default=None)

    def _not_foreign(self, columns: Indices) -> Indices:
        """Return those of the bundle's labels that may be the tenant's, unless posted since."""
        columns = self._near_own(columns[~self.is_deleted(columns)])
        return np.array([column for column in columns.tolist() if column not in self.live])

    def _near_own(self, columns: Indices) -> Indices:
        """Return the columns of few labels; of many, those that have the tenant's value."""
        if self.tenant is None or len(columns) <= _FEW:
            return columns
        return columns[self.fields.passing(labels_of(self.tenant), self.columns)[columns]]

    def _posted_with(self, text_identity: str) -> Iterator[int]:
        """Yield the first column of a posted label whose text has this identity, if there is one.

        The labels that tenants posted are listed by tenant, so that others do not delay one.
        """
        plain = self.identities.places(text_identity)
        if self.tenant is None:
            of_tenants = self.identities.starting_with(_of_tenant(text_identity, ""))
            yield from sorted(chain(islice(plain, 1), of_tenants))[:1]
        else:
            own = self.identities.places(_of_tenant(text_identity, str(self.tenant)))
            near = (self._near_own(np.fromiter(columns, np.int32)) for columns in (own, plain))
            firsts = (islice(filter(self._owns, columns.tolist()), 1) for columns in near)
            yield from sorted(chain.from_iterable(firsts))[:1]

    def _without_posted(self, column: int) -> LabelTable:
        """Return the table without the label that was posted at `column`, if there is one."""
        label = self.live.get(column)
        if label is None:
            return self
        return replace(
            self,
            live=self.live.remove(column),
            identities=self.identities.discard((_listed_as(label), column)),
            live_bytes=self.live_bytes - bytes_of_label(label),
        )

    @cached_property
    def _live_ids(self) -> list[tuple[str, int]]:
        """The ids and columns of all labels posted since the bundle, sorted once by each table.

        A table of some labels takes them from the whole one, which may have sorted them before.
        """
        bits, whole = self.kept, self.whole
        if whole is not None and whole.tenant == self.tenant:
            return [one for one in whole._live_ids if bits[one[1] >> 3] >> (one[1] & 7) & 1]
        columns = np.fromiter(self.live.keys(), np.int32, len(self.live))
        kept = columns[~self.is_deleted(columns)] if self.kept else columns
        return sorted((self.id_at(column), column) for column in kept.tolist())


def _taken(label_id: str) -> InvalidInput:
    return InvalidInput(f"the id {echoed(label_id)} is taken; choose another", field="id")


def _listed_as(label: Label) -> str:
    """Return the text by which a posted label is found: its identity, for the tenant it is of."""
    tenant, text_identity = Tenant.of_stored_id(label.id), identity(label.text)
    if tenant is None or not tenant.owns(label.metadata):
        return text_identity
    return _of_tenant(text_identity, str(tenant))


def _of_tenant(text_identity: str, tenant: str) -> str:
    return f"{text_identity}\n{tenant}"  # no identity has a line break


def bytes_of_label(label: Label | NewLabel) -> int:
    """Return the bytes of a label without its rows: its id, metadata, aliases and queries."""
    of_metadata = BYTES_AN_ENTRY * len(label.metadata) + metadata_bytes(label.metadata)
    of_texts = BYTES_AN_ALIAS * len(label.aliases) + BYTES_A_QUERY * len(label.queries)
    return BYTES_A_LABEL + len(label.id.encode()) + of_texts + of_metadata
