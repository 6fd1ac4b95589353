"""From /openapi.json, generated requests: no 5xx, each answer of its schema and content type."""

import re
import subprocess
import sys
from pathlib import Path

from demo import HTTP

URL = HTTP.removesuffix("/v1")
CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance"

options = ["--url", URL, "--checks", CHECKS, "--phases", "examples,fuzzing"]
options += ["--seed", "1", "--max-examples", "5", "--request-timeout", "500"]
schemathesis = Path(sys.executable).with_name("schemathesis")
done = subprocess.run(
    [schemathesis, "run", f"{URL}/openapi.json", *options], capture_output=True, text=True
)
assert done.returncode == 0, done.stdout
selected, tested = re.search(r"Selected: \d+/(\d+)\s+Tested: (\d+)", done.stdout).groups()
assert int(selected) == int(tested) > 5, done.stdout
passed = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
assert passed[1] == passed[2], done.stdout
