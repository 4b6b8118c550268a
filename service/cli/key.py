"""`python -m service key`: a new API key, and its line for the keys file."""

from __future__ import annotations

from service.command_line import open_console
from service.http.auth import new_key


def key(*, name: str, scopes: str) -> int:
    """Make a random API key: the key goes to stderr, its line for the keys file to stdout.

    So `>> api-keys` appends the line to the file that KEYMATCH_API_KEYS names, which the service
    reads at its start. The key is shown once and stored nowhere: its line has only its SHA-256.

    Parameters
    ----------
    name
        Who uses the key: letters, digits, '.', '_', '@' and '-'.
    scopes
        What the key allows, separated by commas: read, write, admin, metrics.
    """
    made, line = new_key(name, [scope.strip() for scope in scopes.split(",") if scope.strip()])
    open_console(stderr=True).out(f"the key, shown only now: {made}", highlight=False)
    open_console().out(line, highlight=False)
    return 0
