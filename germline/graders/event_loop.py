"""One event loop for all async code of a process, also where another one runs, as in a notebook.

With one loop the connections of async environments stay usable.
"""

import asyncio
import inspect
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any


def await_result(value: Any) -> Any:
    """Wait for what an async method returns; the value of any other method is returned.

    A coroutine that is interrupted (a timeout) is canceled when the loop runs the next time. Where
    this thread runs a loop already, another thread waits.
    """
    if not inspect.iscoroutine(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(value)
    thread = ThreadPoolExecutor(1)
    try:
        return thread.submit(_run, value).result()
    finally:
        thread.shutdown(wait=False)


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
