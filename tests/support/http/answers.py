"""Successful answers are exactly as `service.http.answers` defines and /docs shows them."""

from typing import Any

from pydantic import TypeAdapter


def assert_answer(document: Any, kind: Any) -> None:
    """The document has all fields of the type `kind`, of the right types, and no others."""
    assert TypeAdapter(kind).validate_python(document, strict=True) == document
