"""Overload seen in a queue's delay: CoDel's minimum over an interval against a target.

Sources: Nichols and Jacobson, "Controlling Queue Delay" (2012); Maurer, "Fail at Scale" (2015), and
`Codel` of Facebook's Folly, which applies it to requests. A burst makes some of them wait and is
worked off; a queue in which even the luckiest waits too long stands: more arrives than is answered.

Three differences to Folly, which accepts every request into its queue:

- The delay is the age of the oldest request that waits, not of the one that is taken next. In a
  queue that serves the newest first the latter says nothing.
- A delay over a whole interval is overload at once: so long has the queue been standing.
- Overload ends after an interval in which nothing was refused. Requests are refused before they
  join the queue, which is what keeps it short: a short delay alone does not say that the load fell,
  and ending at once would let the whole flood in again, every interval.
"""

from __future__ import annotations


class DelayControl:
    """Decides whether a queue is overloaded, and how much may wait in it then.

    All times are seconds of one clock that never goes back. `observe` is called by one thread at a
    time; any thread may read `overloaded` and `limit`, and set `refused`.
    """

    def __init__(self, *, target: float, interval: float, floor: int) -> None:
        """Keep the delay near `target` seconds; at least `floor` queries may always wait."""
        self.overloaded = False
        self.limit = floor  # queries that may wait during overload: those answered within `target`
        self.refused = False  # whether anything was refused during this interval
        self._target, self._interval, self._floor = target, interval, floor
        self._ends = 0.0
        self._shortest = 0.0  # seconds, of this interval

    @property
    def patience(self) -> float:
        """Seconds after which waiting is of no use while the queue is overloaded."""
        return 2 * self._target

    def observe(self, delay: float, *, now: float, per_second: float) -> None:
        """Note that something leaves the queue while its oldest entry is `delay` seconds old.

        `per_second` is how many queries can be answered in a second.
        """
        if now >= self._ends:
            stands = self._shortest > self._target
            idle = now - self._ends > self._interval  # nothing has waited for a whole interval
            self.overloaded = not idle and (stands or (self.overloaded and self.refused))
            self.refused = False
            self._shortest, self._ends = delay, now + self._interval
        self._shortest = min(self._shortest, delay)
        self.overloaded = self.overloaded or delay > self._interval
        self.limit = max(self._floor, round(per_second * self._target))
