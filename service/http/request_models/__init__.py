"""The types of request bodies and query strings; upper bounds come from `Limits`.

Requests are strict: no unknown field, no number in place of a string, no string in place of a
number. The classes name the fields for the code that reads them; the functions beside them make the
models that validate and document them, with the configured bounds.
"""

from service.http.request_models.instances import instances_model
from service.http.request_models.items import items_model
from service.http.request_models.labels import label_model, labels_model, merge_model, page_model
from service.http.request_models.predictions import predict_model
from service.http.request_models.texts import text_type
from service.settings import Limits


class RequestModels:
    """The models of all requests, under the configured limits."""

    def __init__(self, limits: Limits) -> None:
        text = text_type(limits)
        self.predict = predict_model(text, limits)
        self.label = label_model(text, limits)
        self.labels = labels_model(self.label, limits)
        self.merge = merge_model(text, limits)
        self.instances = instances_model(text, limits)
        self.page = page_model(limits)
        self.items = items_model(text, limits)
