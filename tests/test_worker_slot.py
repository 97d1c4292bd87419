"""The states of a remote engine: every allowed transition, and every pair that is refused."""

from itertools import product

import pytest

from germline.fleet.worker_slot import TRANSITIONS, WorkerEvent, WorkerSlot, WorkerState
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


def test_every_state_is_reached_and_only_the_last_is_never_left():
    reached, following = {WorkerState.LOADING}, set(TRANSITIONS.values())
    assert reached | following == set(WorkerState)
    assert set(WorkerState) - {state for state, _ in TRANSITIONS} == {WorkerState.GIVEN_UP}


def test_a_fresh_engine_is_loading_and_has_no_job():
    slot = WorkerSlot(Nearby("engine 0"))
    assert (slot.state, slot.job, slot.failures) == (WorkerState.LOADING, None, 0)
