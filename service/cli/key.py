"""`keymatch key`: a new API key, and its line for the keys file."""

from __future__ import annotations

from service.command_line import say
from service.core.tenant import Tenant
from service.http.access import new_key


def key(*, name: str, scope: str, tenant: str | None = None) -> int:
    """Make a random API key: the key goes to stderr, its line for the keys file to stdout.

    Append the line with `>> api-keys` to the file that KEYMATCH_API_KEYS names; the service reads
    it at its start. The key is shown once and stored nowhere: its line has only its SHA-256.

    Parameters
    ----------
    name
        Who uses the key: letters, digits, '.', '_', '@' and '-'.
    scope
        What the key allows: read, write, admin, metrics; several separated by commas.
    tenant
        FIELD=VALUE: the key sees and changes only labels with this value in their metadata.
    """
    of_tenant = None if tenant is None else Tenant.parse(tenant)
    scopes = [one.strip() for one in scope.split(",") if one.strip()]
    made, line = new_key(name, scopes, tenant=of_tenant)
    say(f"the key, shown only now: {made}", stderr=True)
    say(line)
    return 0
