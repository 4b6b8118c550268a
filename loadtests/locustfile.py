"""Simulated users for locust: mostly predictions, some new labels; every answer is checked.

`python -m loadtests.load` starts a server and runs this file against it. Manually:

    locust --locustfile loadtests/locustfile.py --host http://127.0.0.1:8000 --bundle BUNDLE

When locust quits, it compares the run's error rate, median and p99 with the limits in the
arguments. If one is exceeded, it exits with status 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson
from locust import FastHttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests.queries import read_queries, zipf

OPTIONS = {  # name -> default and help
    "bundle": ("", "bundle whose instance and label texts are the queries"),
    "insert-weight": (5, "posted labels among 100 requests; the others are predictions"),
    "user-rate": (5.0, "requests a second of each user, besides the time of the answers"),
    "api-key": ("", "sent as Authorization: Bearer KEY"),
    "max-error-rate": (0.0, "limit on the share of failed requests"),
    "max-p50": (20, "limit on the median of /predict, milliseconds"),
    "max-p99": (150, "limit on the p99 of /predict, milliseconds"),
}

log = logging.getLogger("keymatch.load")


@events.init_command_line_parser.add_listener
def add_arguments(parser: LocustArgumentParser) -> None:
    """Add the arguments of this load."""
    for name, (default, text) in OPTIONS.items():
        help_text = f"{text} (default {default!r})."
        parser.add_argument(f"--{name}", type=type(default), default=default, help=help_text)


class Searcher(FastHttpUser):
    """A user who mostly searches, and sometimes adds a label."""

    queries: Iterator[str]
    labels = count()
    waits = Random(0)

    def wait_time(self) -> float:
        """Return an exponential wait; with equal waits all users would send at the same moments."""
        return self.waits.expovariate(self.environment.parsed_options.user_rate)

    @task
    def predict(self) -> None:
        """Send one query; its keywords must be in descending order of score."""
        query = next(self.queries)

        def mistake(answer: Any) -> str:
            result, *others = answer["results"]
            scores = [keyword["score"] for keyword in result["keywords"]]
            if others or result["query"] != query:
                return "the answer is for another query than the one sent"
            if not scores or not all(keyword["text"] for keyword in result["keywords"]):
                return "no keywords, or a keyword without text"
            return "" if scores == sorted(scores, reverse=True) else "the scores do not descend"

        self._post("/predict", {"queries": [query]}, mistake)

    @task
    def insert(self) -> None:
        """Post a new label with one query; the answer must name the label and a version."""
        text = f"{next(self.queries)} {next(self.labels)}"
        label = {"id": f"load-{text}", "text": text, "queries": [next(self.queries)]}

        def mistake(answer: Any) -> str:
            named = answer["version"] >= 1 and len(answer["labels"]) == 1
            return "" if named else "expected a version and one label"

        self._post("/labels", {"labels": [label]}, mistake)

    def _post(self, path: str, body: Any, mistake: Callable[[Any], str]) -> None:
        """Post a body; the request fails if `mistake` names what is wrong with the answer."""
        key, data = self.environment.parsed_options.api_key, orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        with self.client.post(path, data=data, headers=headers, catch_response=True) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
            elif wrong := mistake(orjson.loads(response.content)):
                response.failure(wrong)


@events.init.add_listener
def prepare_users(environment: Environment, **_: Any) -> None:
    """Read the queries and set the mix of requests."""
    options = environment.parsed_options
    if options is None or not options.bundle:
        raise SystemExit("no queries: set --bundle")
    Searcher.queries = zipf(read_queries(Path(options.bundle)), seed=0)
    Searcher.tasks = [Searcher.predict] * (100 - options.insert_weight)
    Searcher.tasks += [Searcher.insert] * options.insert_weight


@events.quitting.add_listener
def check_limits(environment: Environment, **_: Any) -> None:
    """Compare the run with its limits, log the result and set locust's exit status."""
    options, total = environment.parsed_options, environment.stats.total
    predict = environment.stats.get("/predict", "POST")
    measured = [
        ("error rate", total.fail_ratio, options.max_error_rate),
        ("p50 of /predict, ms", predict.get_response_time_percentile(0.5) or 0, options.max_p50),
        ("p99 of /predict, ms", predict.get_response_time_percentile(0.99) or 0, options.max_p99),
    ]
    exceeded = [f"{name} {value:g} > {limit:g}" for name, value, limit in measured if value > limit]
    if not predict.num_requests:
        exceeded.append("no prediction was requested")
    summary = ", ".join(f"{name} {value:g} (limit {limit:g})" for name, value, limit in measured)
    log.info("%d requests, %.1f a second: %s", total.num_requests, total.total_rps, summary)
    for line in exceeded:
        log.error("limit exceeded: %s", line)
    environment.process_exit_code = 1 if exceeded else 0
