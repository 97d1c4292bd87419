"""Build the environments of libraries that germline is tested with and that do not fit its own.

    python -m checks.hosts.build        # `make hosts`

There is one environment for each evaluation harness that asks `germline serve`, and one for
verifiers, as their dependencies disagree with each other and with germline's tools. They are built,
shared and named like those of the engines (checks/engines/build.py): stdout gets `export
GERMLINE_LM_EVAL_PYTHON=...` for a shell, and with these variables `tests/hosts_real/` is run and
not skipped. GERMLINE_SKIP_HOSTS names harnesses to neither build nor test.
"""

import sys
from pathlib import Path

from checks.engines.build import Recipe, main

HERE = Path(__file__).parent
SKIP = "GERMLINE_SKIP_HOSTS"
RECIPES = (
    Recipe("lm_eval", HERE / "lm_eval.txt", "lm_eval", skipped_by=SKIP),
    Recipe("inspect", HERE / "inspect.txt", "inspect_ai", skipped_by=SKIP),
    Recipe("verifiers", HERE / "verifiers.txt", "verifiers.v1", skipped_by=SKIP),
)

if __name__ == "__main__":
    sys.exit(main(RECIPES))
