"""The headers of every answer that tell a browser what it must not do with it."""

from __future__ import annotations

# A scope's entry that replaces `STRICT`, for the page that a browser is meant to show.
SCOPE_KEY = "keymatch.answer_headers"
Headers = tuple[tuple[bytes, bytes], ...]


def answer_headers(content_security_policy: str) -> Headers:
    """Nothing is guessed, kept, embedded elsewhere or told to others."""
    return (
        (b"content-security-policy", content_security_policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"referrer-policy", b"no-referrer"),
    )


# Of answers that are no page: whatever they hold, nothing of it is run, loaded or framed.
STRICT = answer_headers("default-src 'none'; frame-ancestors 'none'")
