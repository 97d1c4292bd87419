"""One event loop for all async code of a process, also where another one runs, as in a notebook.

With one loop the connections of async environments stay usable.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
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


def await_result(value: Any) -> Any:
    """Wait for what an async method returns; the value of any other method is returned.

    A coroutine that is interrupted (a timeout) is canceled when the loop runs the next time.
    """
    if not inspect.iscoroutine(value):
        return value
    return call_outside_loop(_run, value)


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    loop = _event_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        task.cancel()
        raise


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()
