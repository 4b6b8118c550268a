"""The bodies of POST /admin/snapshot and /admin/reload."""

from typing import Annotated

from pydantic import Field, StringConstraints

from service.http.request_models.texts import StrictModel

# The same names as `BundleDirectory.path` takes.
BundleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class SnapshotBody(StrictModel):
    """The body of POST /admin/snapshot."""

    bundle: BundleName | None = Field(
        None,
        description="Name of the new bundle: 1 to 128 letters, digits, '.', '_' and '-'. Default:"
        " the name of the served bundle, '-v' and the memory version.",
    )


class ReloadBody(StrictModel):
    """The body of POST /admin/reload."""

    bundle: BundleName = Field(
        description="Name of the bundle to serve: a folder in the service's folder of bundles."
    )
    other_data: bool = Field(
        False,
        description="Serve it even if most labels that the label log takes for granted are unknown"
        " to it: what the log says of them counts for nothing.",
    )
