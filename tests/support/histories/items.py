"""Random histories with items. A posted query is fused with the items of the moment of its post, a
predicted query with the items of the view."""

from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from service.core.changes import DeleteItem
from service.core.memory.rule_table import RuleTable
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from tests.support.changes import ENCODER, put_item, seal_items
from tests.support.histories.memory import EVERYTHING, QUERIES, TAU, Histories, answers, words
from tests.support.oracle import Oracle, OracleItems
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import ITEMS

ALL = 100  # more items than any history makes
item_ids = st.sampled_from([*ITEMS, "new-1", "new-2"])


class ItemHistories(Histories):
    """Histories in which items are put and deleted, too."""

    @property
    def items(self) -> OracleItems:
        """The oracle's items."""
        assert self.oracle.items is not None
        return self.oracle.items

    def new_oracle(self) -> Oracle:
        oracle = super().new_oracle()
        oracle.items = OracleItems(ENCODER, attended=2, texts=dict(ITEMS))
        return oracle

    def expected(self, hour: int | None = None) -> list[object]:
        return [*super().expected(hour), dict(self.items.texts), len(self.items.texts)]

    def held(self, view: View) -> list[object]:
        assert view.items is not None
        texts = {item.id: item.text for item in view.items.page(size=ALL)}
        return [*super().held(view), texts, len(view.items)]

    @rule(item_id=item_ids, text=words)
    def put_item(self, item_id: str, text: str) -> None:
        self.items.put(item_id, text)
        self.apply([put_item(self.next, item_id, text)])

    @rule(item_id=item_ids, texts=st.lists(words, min_size=2, max_size=6))
    def churn_item(self, item_id: str, texts: list[str]) -> None:
        """Replace one item several times in one commit."""
        first = self.next
        for text in texts:
            self.items.put(item_id, text)
        self.apply([put_item(first + place, item_id, text) for place, text in enumerate(texts)])

    @rule(item_id=item_ids)
    def delete_item(self, item_id: str) -> None:
        self.items.texts.pop(item_id, None)
        self.apply([DeleteItem(sequence=self.next, id=item_id)])

    @precondition(lambda self: any(self.memory.view.unsealed_item_plans()))
    @rule()
    def seal_items(self) -> None:
        """Seal: answers stay the same, because a search compares all items of so small an index."""
        before = answers(self.memory.view)
        seal_items(self.memory, self.folder)
        assert list(self.memory.view.unsealed_item_plans()) == []
        assert answers(self.memory.view) == before
        self.keep()

    @precondition(lambda self: self.items.texts)
    @rule(data=st.data())
    def predict_with_given_items(self, data: st.DataObject) -> None:
        named = data.draw(
            st.lists(st.sampled_from(list(self.items.texts)), min_size=1, max_size=3, unique=True)
        )
        options = PredictOptions(top_k=50, memorization=0.3, depth=EVERYTHING, items=tuple(named))
        predictor = Predictor(TrigramEncoder(), tau=TAU)
        without_rules = replace(self.memory.view, rules=RuleTable())
        answer = predictor.predict(without_rules, QUERIES[:1], options).predictions[0]
        dense = self.oracle.scores(QUERIES[0], tau=TAU, memorization=0.3, items=named)
        for keyword in answer.keywords:
            assert keyword.score == pytest.approx(dense[keyword.id], abs=1e-5)
