"""The writes that clients can ask for, and how they reach the writer and return results.

An `Operation` plans its changes on the draft of the next view (`Commit`). A `WriteJob` carries it
to the writer; `Written` is its result, which the label log keeps with an idempotency key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import Any, Self

from service.core import times
from service.core.changes import (
    Change,
    ChangeLabel,
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    DeleteRule,
    Posted,
    PutInstance,
    PutItem,
    PutLabel,
    PutRule,
    rows_of,
)
from service.core.encoding.representer import EncodedItem, Neighbour
from service.core.errors import (
    InvalidInput,
    KeymatchError,
    NotInBundle,
    RefusedLabels,
    UnknownItem,
    UnknownLabels,
    echoed,
)
from service.core.items.item_memory import ItemMemory
from service.core.memory.decay import HOUR, hour_of
from service.core.memory.draft import Draft, vote_of
from service.core.memory.label_table import LabelTable
from service.core.memory.rule_table import RuleTable
from service.core.replay import texts_of
from service.core.rules import Rule
from service.core.tenant import Tenant
from service.core.types import NewInstance, NewItem, NewLabel
from service.engine.loaded_bundle import LoadedBundle
from service.engine.writing.label_merge import LabelMerge
from service.settings import Limits

# The most unknown ids looked for, one more than an answer names: 100,000 would take seconds.
NAMED_LABELS = 101


@dataclass(frozen=True, kw_only=True)
class WrittenLabel:
    """A label's id, its status (created, updated or unchanged), and the neighbours in its key."""

    id: str
    status: str
    neighbours: tuple[Neighbour, ...] = ()


LeftOut = tuple[int, int]  # positions of an instance in its request, and of a label in the instance


@dataclass(frozen=True, kw_only=True)
class Written:
    """The memory version that holds a request's writes, and each item's result."""

    version: int
    labels: tuple[WrittenLabel, ...] = ()  # or items of the item memory, or rules
    accepted: int = 0  # number of accepted instances, or of unlearned pairs
    left_out: tuple[LeftOut, ...] = ()  # unknown labels of instances


def to_document(written: Written) -> Mapping[str, Any]:
    """Return the result, without its version, as JSON."""
    return {
        "labels": [
            [label.id, label.status, [astuple(neighbour) for neighbour in label.neighbours]]
            for label in written.labels
        ],
        "accepted": written.accepted,
        **({"left_out": written.left_out} if written.left_out else {}),
    }


def from_document(version: int, document: Mapping[str, Any]) -> Written:
    """Return the result from the document that `to_document` made of it."""
    return Written(
        version=version,
        labels=tuple(
            WrittenLabel(
                id=label_id,
                status=status,
                neighbours=tuple(
                    Neighbour(id=near, text=text, similarity=similarity)
                    for near, text, similarity in neighbours
                ),
            )
            for label_id, status, neighbours in document["labels"]
        ),
        accepted=document["accepted"],
        left_out=tuple((place, position) for place, position in document.get("left_out", ())),
    )


class Commit:
    """Collects changes, and applies each one at once to a draft of the next view."""

    def __init__(self, loaded: LoadedBundle) -> None:
        """Start from the newest view of a bundle's memory."""
        self.draft = loaded.memory.draft()
        self.changes: list[Change] = []
        self._representer, self._memory = loaded.representer, loaded.memory

    @property
    def version(self) -> int:
        """The memory version after all changes so far."""
        return self.draft.version

    @property
    def next(self) -> int:
        """The sequence number of the next change."""
        return self.draft.version + 1

    @property
    def decays(self) -> bool:
        """Whether the weights of clicks decay."""
        return self._memory.half_life is not None

    def require_room(
        self, items: Sequence[Posted], rules: Sequence[Rule] = (), *, growth: int = 0
    ) -> None:
        """Raise `MemoryFull` unless `items`, `rules` and `growth` bytes of known labels fit."""
        self._memory.require_room(self.draft, items, rules, growth=growth)

    def put_label(
        self, label: NewLabel, encoded: EncodedItem | None, tenant: Tenant | None
    ) -> tuple[Neighbour, ...]:
        """Create or replace a label, and encode it here if `encoded` is None.

        Returns the tenant's neighbours that enriched it and still exist. A deleted label's
        classifier still enriches others, but is not named to clients.
        """
        encoded = self.encoded(label, encoded)
        self.add(PutLabel(sequence=self.next, label=label, vectors=encoded.rows))
        labels = self.draft.labels.of(tenant)
        return tuple(
            neighbour for neighbour in encoded.neighbours if labels.column(neighbour.id) is not None
        )

    def encoded(self, item: Posted, encoded: EncodedItem | None) -> EncodedItem:
        """Return `encoded`, or encode the item here if that is None."""
        if encoded is None:
            [encoded] = self._representer.encode([texts_of(item)])
        return encoded

    def add(self, change: Change) -> None:
        """Apply a change to the draft, and keep it for the log."""
        self.draft.apply([change])
        self.changes.append(change)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One request's write; applied as a whole, or not at all if `plan` raises.

    `items` are the labels, instances or items that are written; `to_encode` says which are encoded.
    The ids are those of the `tenant`, or stored ones without a tenant.
    """

    items: Sequence[Posted] = ()
    tenant: Tenant | None = None

    def to_encode(self, table: LabelTable) -> Sequence[Posted]:
        """Return the items whose texts must be encoded, judging by `table`."""
        return changed(self.items, table, self.tenant)

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add changes to the commit. `encoded_items` match `items`; None is not encoded yet."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """An idempotency key and the digest of the request that came with it."""

    key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class WriteJob:
    """One client's operation, its encoded items, and the future that gets its result.

    `encoded_items` are empty or match the operation's; the writer encodes those that are None.
    `encoder_fingerprint` identifies the encoder and combiner of the others. `submitted` is a time
    of `monotonic`. Cancelling the future before the writer takes the job prevents the write.
    """

    operation: Operation
    encoded_items: Sequence[EncodedItem | None] = ()
    encoder_fingerprint: str = ""
    request: RequestKey | None = None
    submitted: float = field(default_factory=monotonic)
    future: Future[Written] = field(default_factory=Future)

    @property
    def unencoded_texts(self) -> int:
        """Count the texts that the writer may have to encode."""
        encoded_items = self.encoded_by(self.encoder_fingerprint)
        return sum(
            rows_of(item)
            for item, encoded in zip(self.operation.items, encoded_items, strict=True)
            if encoded is None
        )

    def encoded_by(self, encoder_fingerprint: str) -> Sequence[EncodedItem | None]:
        """Return the encoded items if this encoder encoded them, otherwise None for each.

        A reload between encoding and writing may have replaced the encoder.
        """
        if self.encoded_items and self.encoder_fingerprint == encoder_fingerprint:
            return self.encoded_items
        return [None] * len(self.operation.items)


@dataclass(frozen=True, kw_only=True)
class PostLabels(Operation):
    """Create or replace labels, in order; those of a tenant have its value in their metadata."""

    items: tuple[NewLabel, ...]

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the labels that the memory does not hold as posted; raises `MemoryFull`.

        A label without an id gets its id here (`LabelTable.identified`). Raises `InvalidInput` for
        an id that is taken.
        """
        commit.require_room(changed(self.items, commit.draft.labels, self.tenant))
        written = []
        for new_label, encoded in zip(self.items, encoded_items, strict=True):
            label = commit.draft.labels.of(self.tenant).identified(new_label)
            written.append(_put(commit, label, encoded, self.tenant))
        return Written(version=commit.version, labels=tuple(written))


def _put(
    commit: Commit, label: NewLabel, encoded: EncodedItem | None, tenant: Tenant | None
) -> WrittenLabel:
    """Add a label, given with the id under which it is stored, unless the memory holds it so."""
    known = commit.draft.labels.as_posted(label.id)
    if known is not None and is_same(known, label):
        return WrittenLabel(id=label.id, status="unchanged")
    status = "created" if known is None else "updated"
    neighbours = commit.put_label(label, encoded, tenant)
    return WrittenLabel(id=label.id, status=status, neighbours=neighbours)


def is_same(known: NewLabel, posted: NewLabel) -> bool:
    """Return whether two labels are equal; the metadata 1, 1.0 and true are not."""
    if known != posted:
        return False
    return all(type(known.metadata[name]) is type(value) for name, value in posted.metadata.items())


@dataclass(frozen=True, kw_only=True)
class MergeLabels(Operation):
    """Merge into a tenant's labels, in order, all or none.

    A merge that gives texts is written as a whole label, like a posted one; any other is written as
    `ChangeLabel`, and nothing is encoded. The merged labels in `expected` were made from the newest
    view, None where that is impossible. Their texts are encoded, and are written only if the label
    still has the texts that it had then.
    """

    merges: tuple[LabelMerge, ...]
    expected: tuple[NewLabel | None, ...]
    limits: Limits

    @classmethod
    def of(
        cls,
        merges: Sequence[LabelMerge],
        table: LabelTable,
        *,
        limits: Limits,
        tenant: Tenant | None,
    ) -> Self:
        """Return the operation for the present state of the labels in `table`."""
        states = _States(table.of(tenant), limits)
        expected: list[NewLabel | None] = []
        for merge in merges:
            try:
                expected.append(states.merged(merge))
            except InvalidInput:  # `plan` raises it, unless the request was answered before
                expected.append(None)
        return cls(
            merges=tuple(merges),
            expected=tuple(expected),
            items=tuple(label for label in expected if label is not None),
            limits=limits,
            tenant=tenant,
        )

    def to_encode(self, table: LabelTable) -> Sequence[Posted]:
        """Return the merged labels whose merges give texts, but for known ones."""
        pairs = zip(self.merges, self.expected, strict=True)
        whole = [label for merge, label in pairs if label is not None and merge.changes_texts]
        return changed(whole, table, self.tenant)

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the merged labels that change something.

        Raises `RefusedLabels` for labels that are unknown or grow beyond the limits, `LabelChanged`
        if a label has other texts by now than those that were expected, or `MemoryFull`.
        """
        states = _States(commit.draft.labels.of(self.tenant), self.limits)
        merged: list[NewLabel] = []
        refused: dict[int, InvalidInput] = {}
        for place, (merge, expected) in enumerate(zip(self.merges, self.expected, strict=True)):
            try:
                merged.append(states.merged(merge))
            except InvalidInput as error:
                refused[place] = error.with_traceback(None)  # its frames hold the job
                continue
            if merge.changes_texts and _texts(merged[-1]) != _texts(expected):
                raise LabelChanged("the label has changed since it was read")
        if refused:
            raise RefusedLabels(refused)
        self._require_room(commit, merged)
        encoded = iter(encoded_items)
        written = [
            self._write(commit, merge, label, None if expected is None else next(encoded))
            for merge, label, expected in zip(self.merges, merged, self.expected, strict=True)
        ]
        return Written(version=commit.version, labels=tuple(written))

    def _require_room(self, commit: Commit, merged: Sequence[NewLabel]) -> None:
        """Raise `MemoryFull` unless the labels fit; those without new texts take no rows."""
        table = commit.draft.labels.of(self.tenant)
        whole: list[Posted] = []
        growth = 0
        for merge, label in zip(self.merges, merged, strict=True):
            if merge.changes_texts:
                whole.append(label)
            else:
                growth += table.growth(table.require(merge.id).index, label)
        commit.require_room(changed(whole, commit.draft.labels, self.tenant), growth=growth)

    def _write(
        self, commit: Commit, merge: LabelMerge, label: NewLabel, encoded: EncodedItem | None
    ) -> WrittenLabel:
        table = commit.draft.labels.of(self.tenant)
        stored_id = table.stored_id_at(table.require(merge.id).index)
        if merge.changes_texts:
            return _put(commit, replace(label, id=stored_id), encoded, self.tenant)
        known = table.as_posted(merge.id)
        if known is not None and is_same(known, label):
            return WrittenLabel(id=stored_id, status="unchanged")
        commit.add(ChangeLabel.of(label, sequence=commit.next, id=stored_id))
        return WrittenLabel(id=stored_id, status="updated")


class _States:
    """The states of labels while merges are applied one after the other, without writing them."""

    def __init__(self, table: LabelTable, limits: Limits) -> None:
        self._table, self._limits = table, limits
        self._merged: dict[int, NewLabel] = {}  # by column

    def merged(self, merge: LabelMerge) -> NewLabel:
        """Return the label after a merge.

        Raises `UnknownLabel`, or `InvalidInput` for a limit, or for an id that a tenant has twice.
        """
        column = self._table.require(merge.id).index
        label = self._merged.get(column) or self._table.as_posted(merge.id)
        assert label is not None
        merged = self._merged[column] = merge.into(label, self._limits)
        self._table.identified(merged)
        return merged


def _texts(label: NewLabel | None) -> tuple[object, ...]:
    return () if label is None else (label.text, label.aliases, label.queries)


class LabelChanged(KeymatchError):
    """Another write has changed the texts of a label that `MergeLabels` was made for."""


@dataclass(frozen=True, kw_only=True)
class PostInstances(Operation):
    """Add queries with the labels that they were clicked for, or rejected.

    An unknown label refuses the whole request, or is left out if `skip_unknown`.
    """

    items: tuple[NewInstance, ...]
    skip_unknown: bool = False

    def to_encode(self, table: LabelTable) -> Sequence[Posted]:
        """Return the instances that are not left out as a whole."""
        if not self.skip_unknown:
            return self.items
        known = table.of(self.tenant).column
        return [one for one in self.items if any(known(name) is not None for name in one.labels)]

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the instances that change something. One without a known label is not accepted.

        Raises `UnknownLabels`, naming them, or `MemoryFull`.
        """
        instances, left_out = _with_known_labels(self, commit.draft.labels)
        accepted = [instance for instance in instances if instance.labels]
        commit.require_room(accepted)
        for posted, encoded in zip(instances, encoded_items, strict=True):
            instance = _with_time(posted, commit.draft) if commit.decays else posted
            if instance.labels and not self._known(commit.draft, instance):
                vectors = commit.encoded(instance, encoded).rows
                commit.add(PutInstance(sequence=commit.next, instance=instance, vectors=vectors))
        return Written(version=commit.version, accepted=len(accepted), left_out=left_out)

    @staticmethod
    def _known(draft: Draft, instance: NewInstance) -> bool:
        """Return whether the query already votes for all these labels as this click does.

        Clicks that are counted always change something.
        """
        if instance.clicks is not None:
            return False
        known = draft.ownership.click(instance.query)
        return known.after(draft.columns(instance.labels), vote_of(instance)).is_like(known)


def _with_time(instance: NewInstance, draft: Draft) -> NewInstance:
    """Return a click with a time: its own, or else the present hour.

    So a click that is repeated within one hour changes nothing. If the clock was set back, the hour
    is that of the pairs' newest click: a click without a time is newer than those before it.
    """
    if instance.at is not None:
        return instance
    votes, columns = draft.ownership.click(instance.query).votes, draft.columns(instance.labels)
    known = {votes[column].hour for column in columns if column in votes} - {times.NEVER}
    return replace(instance, at=HOUR * max(hour_of(times.now()), *known, 0))


@dataclass(frozen=True, kw_only=True)
class UnlearnInstances(Operation):
    """Take back posted pairs; with `trained`, unlearn them from all that the memory holds.

    The instances' weights do not matter. An unknown label refuses the whole request, or is left out
    if `skip_unknown`.
    """

    items: tuple[NewInstance, ...]
    skip_unknown: bool = False
    trained: bool = False

    def to_encode(self, table: LabelTable) -> Sequence[Posted]:
        """Return no item: a row that is left was encoded before."""
        return ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Unlearn the pairs that the memory holds, and count them; nothing is encoded.

        Raises `UnknownLabels`, naming them, or `MemoryFull`: the other votes of a query need a row.
        """
        instances, left_out = _with_known_labels(self, commit.draft.labels)
        commit.require_room(instances)
        pairs = 0
        for instance in instances:
            query, trained = instance.query, self.trained
            labels = commit.draft.learned(query, instance.labels, trained=trained)
            if labels:
                sequence = commit.next
                commit.add(
                    DeleteInstance(sequence=sequence, query=query, labels=labels, trained=trained)
                )
                pairs += len(labels)
        return Written(version=commit.version, accepted=pairs, left_out=left_out)


def _with_known_labels(
    operation: PostInstances | UnlearnInstances, table: LabelTable
) -> tuple[tuple[NewInstance, ...], tuple[LeftOut, ...]]:
    """Return an operation's instances with known labels, and the positions of skipped labels.

    The labels have the ids under which they are stored in `table`, which may hold those of other
    tenants. Raises `UnknownLabels` unless the operation skips unknown ones.
    """
    own = table.of(operation.tenant)
    if not operation.skip_unknown:
        require_labels(operation.items, own)
    known: list[NewInstance] = []
    left_out: list[LeftOut] = []
    for place, instance in enumerate(operation.items):
        columns = [own.column(label_id) for label_id in instance.labels]
        left_out += [(place, position) for position, one in enumerate(columns) if one is None]
        stored = tuple(own.stored_id_at(column) for column in columns if column is not None)
        known.append(replace(instance, labels=stored))
    return tuple(known), tuple(left_out)


@dataclass(frozen=True, kw_only=True)
class Refuse(Operation):
    """Refuse a request, unless its idempotency key has an answer; writes nothing."""

    error: KeymatchError
    instances: tuple[NewInstance, ...] = ()

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Raise the error, or `UnknownLabels` if the instances name labels that do not exist."""
        require_labels(self.instances, commit.draft.labels.of(self.tenant))
        raise self.error


class LabelsKnown(KeymatchError):
    """All labels of instances are known, so they are not refused."""


def require_labels(instances: Sequence[NewInstance], table: LabelTable) -> None:
    """Raise `UnknownLabels` for the first `NAMED_LABELS` that do not exist."""
    _refuse(
        (f"instances.{place}.labels.{position}", _no_label(label_id))
        for place, instance in enumerate(instances)
        for position, label_id in enumerate(instance.labels)
        if table.column(label_id) is None
    )


def _no_label(label_id: str) -> str:
    return f"no label has the id {echoed(label_id)}"


def _refuse(unknown: Iterable[tuple[str, str]]) -> None:
    """Raise `UnknownLabels` for the first `NAMED_LABELS` of these paths and messages, if any."""
    named = list(islice(unknown, NAMED_LABELS))
    if named:
        raise UnknownLabels(named)


def changed(
    items: Sequence[Posted], table: LabelTable, tenant: Tenant | None = None
) -> list[Posted]:
    """Return the items without a tenant's labels that `table` already holds as posted."""
    own = table.of(tenant)

    def is_held(label: NewLabel) -> bool:
        try:
            identified = own.identified(label)
        except InvalidInput:  # `plan` raises it, too
            return False
        known = table.as_posted(identified.id)
        return known is not None and is_same(known, identified)

    return [item for item in items if not (isinstance(item, NewLabel) and is_held(item))]


@dataclass(frozen=True, kw_only=True)
class PostItems(Operation):
    """Create or replace items, in order; all tenants have the same ones."""

    items: tuple[NewItem, ...]

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the items that change something. Raises `NotInBundle` or `MemoryFull`.

        An item without an id gets its id here (`ItemMemory.identified`).
        """
        _required(commit.draft)
        commit.require_room(self.items)
        written = []
        for new_item, encoded in zip(self.items, encoded_items, strict=True):
            memory = _required(commit.draft)
            item = memory.identified(new_item)
            place = memory.find(item.id)
            if place is not None and memory.text_at(place) == item.text:
                written.append(WrittenLabel(id=item.id, status="unchanged"))
                continue
            vectors = commit.encoded(item, encoded).rows
            commit.add(PutItem(sequence=commit.next, item=item, vectors=vectors))
            status = "created" if place is None else "updated"
            written.append(WrittenLabel(id=item.id, status=status))
        return Written(version=commit.version, labels=tuple(written))


@dataclass(frozen=True, kw_only=True)
class PostRules(Operation):
    """Create or replace rules, in order."""

    rules: tuple[Rule, ...]  # of the tenant

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Add the rules that change something.

        Raises `UnknownLabels` for labels that these rules name and that do not exist, `MemoryFull`,
        and `InvalidInput` if rules that act together would cost a query too much.
        """
        table, rules = commit.draft.labels.of(self.tenant), commit.draft.rules.of(self.tenant)
        unknown = (
            (f"rules.{place}.{path}", _no_label(label_id))
            for place, rule in enumerate(self.rules)
            if rule != rules.get(rule.id)  # its labels may have been deleted since
            for path, label_id in rule.named_labels()
            if table.column(label_id) is None
        )
        _refuse(unknown)
        commit.require_room((), self.rules)
        _require_bounded(rules, self.rules)
        written = []
        for rule in self.rules:
            known = rules.get(rule.id)
            status = "created" if known is None else "updated"
            if known == rule:
                status = "unchanged"
            else:
                commit.add(PutRule(sequence=commit.next, rule=rule))
            written.append(WrittenLabel(id=rule.id, status=status))
        return Written(version=commit.version, labels=tuple(written))


def _require_bounded(table: RuleTable, rules: Sequence[Rule]) -> None:
    """Raise `InvalidInput` if these rules, with those of a table, would cost a query too much."""
    for rule in rules:
        table = table.put(rule)
    now = times.now()
    for place, rule in enumerate(rules):
        table.require_bounded(rule, field=f"rules.{place}", now=now)


@dataclass(frozen=True, kw_only=True)
class DeleteOne(Operation):
    """Delete the label, item or rule with this id; `change` is the class of the change."""

    change: type[DeleteLabel | DeleteItem | DeleteRule]
    id: str

    def plan(self, commit: Commit, encoded_items: Sequence[EncodedItem | None]) -> Written:
        """Delete it. Raises `UnknownLabel`, `UnknownRule`, or `NotInBundle` or `UnknownItem`."""
        if self.change is DeleteLabel:
            table = commit.draft.labels.of(self.tenant)
            stored_id = table.stored_id_at(table.require(self.id).index)
            commit.add(DeleteLabel(sequence=commit.next, id=stored_id))
        elif self.change is DeleteRule:
            commit.draft.rules.of(self.tenant).require(self.id)
            commit.add(DeleteRule(sequence=commit.next, id=self.id, tenant=self.tenant))
        else:
            if _required(commit.draft).find(self.id) is None:
                raise UnknownItem(f"no item has the id {echoed(self.id)}", field="id")
            commit.add(DeleteItem(sequence=commit.next, id=self.id))
        return Written(version=commit.version)


def _required(draft: Draft) -> ItemMemory:
    if draft.items is None:
        raise NotInBundle("item memory", field="items")
    return draft.items
