"""The hooks of pytest for this repository, which need the tools that `make test` installs.

pytest asks a `conftest.py` about files beside and below it only, so this one stands at the root. A
task that somebody wrote below it is tested with pytest alone, without these tools.
"""

import importlib.util

if importlib.util.find_spec("sybil"):
    from tests.docs_pages import (
        collect_ignore,
        pytest_collect_file,
        pytest_collection_modifyitems,
        pytest_runtest_logstart,
        pytest_xdist_make_scheduler,
    )

    __all__ = [
        "collect_ignore",
        "pytest_collect_file",
        "pytest_collection_modifyitems",
        "pytest_runtest_logstart",
        "pytest_xdist_make_scheduler",
    ]
