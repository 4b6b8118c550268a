"""schemathesis sends thousands of requests made from /openapi.json and checks their answers."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import server_process
from tests.support.tiny.bundles import make_bundle

pytestmark = pytest.mark.slow

SEED = 18
EXAMPLES = 300  # per operation, valid and invalid each; those that cover each field are extra
CASES = 2_500  # least number of requests per run; one run has API keys, one has none
# The service also refuses what a schema cannot express: a repeated id, a version that is too new.
# The hook `wrong_data_is_refused` replaces the second check.
EXCLUDED = "positive_data_acceptance,negative_data_rejection"
SETTINGS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504, 507]
"""
CASES_MADE = re.compile(r"([\d,]+) generated")


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("keys", [False, True])
def test_every_answer_is_as_the_document_says(keys: bool, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "shelf" / "tiny")
    key_file = tmp_path / "keys"
    key_file.write_text(f"all:read,write,admin:{hashlib.sha256(b'secret').hexdigest()}\n")
    env = {"KEYMATCH_API_KEYS": str(key_file)} if keys else {}
    header = ["--header", "Authorization: Bearer secret"] if keys else []
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with server_process(bundle, tmp_path / "state", tmp_path / "log", env=env) as server:
        made = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run"),
                f"http://127.0.0.1:{server.port}/openapi.json",
                *("--seed", str(SEED), "--max-examples", str(EXAMPLES)),
                *("--phases", "examples,coverage,fuzzing", "--exclude-checks", EXCLUDED),
                *("--suppress-health-check", "all", "--continue-on-failure", *header),
                # A snapshot alongside other tests takes longer than the default of ten seconds.
                *("--request-timeout", "120"),
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.support.http.schemathesis_hooks",
                 "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
        )  # fmt: skip
        assert server.client.get("/health/ready").status_code == 200
        assert not server.logged("defect")

    report = "\n".join(line[:300] for line in made.stdout.splitlines())
    assert made.returncode == 0, report
    [cases] = CASES_MADE.findall(made.stdout)
    assert int(cases.replace(",", "")) >= CASES
