"""Request bodies of the services that we wrote around a library or a database."""

from pydantic import BaseModel


class Queries(BaseModel):
    """The body of POST /predict."""

    queries: list[str]
    top_k: int = 10


class Label(BaseModel):
    """One text to insert."""

    id: str
    text: str


class Labels(BaseModel):
    """The body of POST /labels."""

    labels: list[Label]
