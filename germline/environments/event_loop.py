"""One event loop for all async environments of a process, so that their connections stay usable."""

import asyncio
import inspect
from collections.abc import Coroutine
from functools import cache
from typing import Any

from germline.graders.running_loop import call_outside_loop


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
