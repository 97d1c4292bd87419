"""Call what runs an event loop of its own where a loop may be running already, as in a notebook."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def call_outside_loop(function: Callable[[Any], Any], argument: Any) -> Any:
    """Call a function; in a thread of its own if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(argument)
    thread = ThreadPoolExecutor(1, thread_name_prefix="outside-loop")
    try:
        return thread.submit(function, argument).result()
    finally:
        thread.shutdown(wait=False)
