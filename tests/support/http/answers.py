"""Check that answers are exactly as their types in `service.http` define and /docs shows them."""

from typing import Any

from pydantic import TypeAdapter


def assert_answer(document: Any, kind: Any) -> None:
    """Assert that the document has exactly the fields of `kind`, with the right types."""
    assert TypeAdapter(kind).validate_python(document, strict=True) == document
