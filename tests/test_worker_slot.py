"""The states of a remote engine: every allowed transition, and every pair that is refused."""

from itertools import product

import pytest

from germline.fleet.remote_engine import WorkerEvent, WorkerSlot, WorkerState
from tests.remote_engines import Nearby

ALLOWED = {
    ("LOADING", "BASE_LOADED"): "LOADED",
    ("LOADED", "SYNCED"): "READY",
    ("READY", "LEFT_BEHIND"): "LATE",
    ("LATE", "LATE_JOB_ENDED"): "BEHIND",
    ("BEHIND", "SYNCED"): "READY",
    ("LOADING", "LOST"): "LOADING",
    ("LOADED", "LOST"): "LOADING",
    ("READY", "LOST"): "LOADING",
    ("LATE", "LOST"): "LOADING",
    ("BEHIND", "LOST"): "LOADING",
    ("LOADING", "LOST_TOO_OFTEN"): "GIVEN_UP",
    ("LOADED", "LOST_TOO_OFTEN"): "GIVEN_UP",
    ("READY", "LOST_TOO_OFTEN"): "GIVEN_UP",
    ("LATE", "LOST_TOO_OFTEN"): "GIVEN_UP",
    ("BEHIND", "LOST_TOO_OFTEN"): "GIVEN_UP",
}
"""Written out a second time, so that a changed line of the table is noticed."""


@pytest.mark.parametrize(("state", "event"), list(product(WorkerState, WorkerEvent)))
def test_every_event_in_every_state_is_a_transition_or_refused(state, event):
    slot = WorkerSlot(Nearby("engine 0"), state)
    following = ALLOWED.get((state.name, event.name))
    if following is None:
        with pytest.raises(RuntimeError, match=f"engine 0 is {state.value}; impossible"):
            slot.handle(event)
        assert slot.state is state
    else:
        slot.handle(event)
        assert slot.state is WorkerState[following]
