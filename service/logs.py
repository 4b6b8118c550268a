"""Log lines as JSON on stderr, one object per line."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

# uvicorn says so once it listens, which is before bundle and log are opened. Whether they could be,
# the service says itself: `ready`, or the error that ends it.
_TOO_EARLY = frozenset({"Waiting for application startup.", "Application startup complete."})


class JsonLines(logging.Formatter):
    """Time, level, message, and the fields that were passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(document, default=str).decode()


def configure_logs(*, access: bool) -> None:
    """Send the logs of keymatch and uvicorn to stderr.

    `access` turns on one line per request; it replaces uvicorn's own access log.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(_not_too_early)
    for name in ("keymatch", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("keymatch.access").setLevel(logging.INFO if access else logging.WARNING)


def _not_too_early(record: logging.LogRecord) -> bool:
    return record.getMessage() not in _TOO_EARLY
