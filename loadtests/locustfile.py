"""Users of the service for locust: mostly predictions, some new labels, every answer checked.

`python -m loadtests.load` runs this headless against a server of its own. By hand:

    locust --locustfile loadtests/locustfile.py --host http://127.0.0.1:8000 --bundle BUNDLE

When locust quits, the run's error rate, median and p99 are held to the limits that the arguments
set; beyond one of them locust exits with status 1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import orjson
from locust import FastHttpUser, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests.queries import ZIPF_EXPONENT, read_queries, zipf

_HEADERS = {"Content-Type": "application/json"}

log = logging.getLogger("keymatch.load")


@events.init_command_line_parser.add_listener
def add_arguments(parser: LocustArgumentParser) -> None:
    """Arguments of this load, each also an environment variable LOCUST_NAME."""
    group = parser.add_argument_group("keymatch", "Queries, mix and limits")

    def add(name: str, default: Any, text: str) -> None:
        variable = "LOCUST_" + name.upper().replace("-", "_")
        group.add_argument(
            f"--{name}",
            type=type(default),
            default=default,
            env_var=variable,
            help=f"{text} (default {default!r}).",
        )

    add("bundle", "", "bundle whose instance and label texts are asked for")
    add("queries", "", "file of queries in their place: one a line, or LF-XMC JSON with titles")
    add("query-seed", 0, "draws the queries' ranks and order")
    add("zipf-exponent", ZIPF_EXPONENT, "a query of rank r is drawn in proportion to r ** -this")
    add("predict-weight", 95, "share of predictions")
    add("insert-weight", 5, "share of posted labels")
    add("user-rate", 5.0, "requests a second of one user while answers take no time")
    add("api-key", "", "sent as Authorization: Bearer KEY")
    add("max-error-rate", 0.0, "limit on failed requests / all")
    add("max-p50", 20, "limit on the median of /predict, milliseconds")
    add("max-p99", 150, "limit on the p99 of /predict, milliseconds")


class Searcher(FastHttpUser):
    """Somebody who searches, and now and then adds a keyword."""

    queries: Iterator[str]
    labels = count()
    waits = Random(0)

    def wait_time(self) -> float:
        """Exponential: users that all wait equally long would stay in step and arrive in bursts."""
        return self.waits.expovariate(self.environment.parsed_options.user_rate)

    def on_start(self) -> None:
        """Send the key, if there is one."""
        key = self.environment.parsed_options.api_key
        self.headers = {**_HEADERS, **({"Authorization": f"Bearer {key}"} if key else {})}

    @task(95)
    def predict(self) -> None:
        """One query; keywords must come back in descending order of score."""
        query = next(self.queries)
        answer = self._post("/predict", {"queries": [query]}, check_keywords)
        if answer is not None and answer["results"][0]["query"] != query:
            raise AssertionError("another query was answered than the one asked")

    @task(5)
    def insert(self) -> None:
        """A new label with one known query; the answer must name it and a version."""
        text = f"{next(self.queries)} {next(self.labels)}"
        body = {"labels": [{"id": f"load-{text}", "text": text, "queries": [next(self.queries)]}]}
        self._post("/labels", body, check_labels)

    def _post(self, path: str, body: Any, check: Any) -> Any:
        with self.client.post(
            path, data=orjson.dumps(body), headers=self.headers, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return None
            answer = orjson.loads(response.content)
            wrong = check(answer)
            if wrong:
                response.failure(wrong)
                return None
            return answer


def check_keywords(answer: Any) -> str | None:
    """What is wrong with an answer of /predict for one query."""
    if len(answer["results"]) != 1:
        return "not one result for one query"
    keywords = answer["results"][0]["keywords"]
    scores = [keyword["score"] for keyword in keywords]
    if not keywords or any(not keyword["text"] for keyword in keywords):
        return "no keywords, or keywords without text"
    return None if scores == sorted(scores, reverse=True) else "scores do not descend"


def check_labels(answer: Any) -> str | None:
    """What is wrong with an answer of /labels for one label."""
    if answer["version"] < 1 or len(answer["labels"]) != 1:
        return "no version, or not one label for one label"
    return None


@events.init.add_listener
def prepare(environment: Environment, **_: Any) -> None:
    """Read the queries, set the mix."""
    options = environment.parsed_options
    if options is None or not (options.bundle or options.queries):
        raise SystemExit("name --bundle or --queries")
    file = Path(options.queries) if options.queries else None
    Searcher.queries = zipf(
        read_queries(Path(options.bundle), file),
        seed=options.query_seed,
        exponent=options.zipf_exponent,
    )
    Searcher.tasks = [Searcher.predict] * options.predict_weight
    Searcher.tasks += [Searcher.insert] * options.insert_weight


@events.quitting.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """Hold the run to its limits and say so."""
    options, total = environment.parsed_options, environment.stats.total
    predict = environment.stats.get("/predict", "POST")
    found = [
        ("error rate", total.fail_ratio, options.max_error_rate),
        ("p50 of /predict, ms", predict.get_response_time_percentile(0.5) or 0, options.max_p50),
        ("p99 of /predict, ms", predict.get_response_time_percentile(0.99) or 0, options.max_p99),
    ]
    exceeded = [f"{name} {value:g} > {limit:g}" for name, value, limit in found if value > limit]
    if not predict.num_requests:
        exceeded.append("nothing was asked")
    summary = ", ".join(f"{name} {value:g} (limit {limit:g})" for name, value, limit in found)
    log.info("%d requests, %.1f a second: %s", total.num_requests, total.total_rps, summary)
    for line in exceeded:
        log.error("limit exceeded: %s", line)
    environment.process_exit_code = 1 if exceeded else 0
