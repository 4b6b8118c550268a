"""The request models of all routes under given limits, by a short name."""

from types import SimpleNamespace

from service.http.admin import ReloadBody, SnapshotBody
from service.http.bodies import Page, limited
from service.http.instances import InstancesRequest, UnlearnRequest
from service.http.items import ItemsRequest
from service.http.labels import (
    LabelBody,
    LabelChangeBody,
    LabelChanges,
    LabelMergeBody,
    LabelPageQuery,
    LabelsRequest,
)
from service.http.predictions import PredictRequest
from service.http.rules import RulesRequest
from service.settings import Limits

MODELS = {
    "predict": PredictRequest,
    "label": LabelBody,
    "labels": LabelsRequest,
    "merge": LabelMergeBody,
    "change": LabelChangeBody,
    "changes": LabelChanges,
    "instances": InstancesRequest,
    "unlearn": UnlearnRequest,
    "page": Page,
    "label_page": LabelPageQuery,
    "rules": RulesRequest,
    "items": ItemsRequest,
    "snapshot": SnapshotBody,
    "reload": ReloadBody,
}


def request_models(limits: Limits) -> SimpleNamespace:
    """Return the models under these limits."""
    return SimpleNamespace(**{name: limited(model, limits) for name, model in MODELS.items()})
