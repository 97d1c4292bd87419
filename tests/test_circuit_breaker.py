"""The circuit breaker of the requests to a scorer: when it opens, what it tries, when it closes."""

import pytest

from germline.scorers import circuit_breaker
from germline.scorers.circuit_breaker import CircuitBreaker, ServiceAwayError
from germline.scorers.types import ScorerClosedError
from tests.hang_limit import HANG_S


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def breaker(retry_timeout_s=10.0):
    clock = Clock()
    return CircuitBreaker("s", retry_timeout_s, clock=clock), clock


def away(clock, seconds=0.0):
    def attempt():
        clock.now += seconds
        raise ServiceAwayError("gone")

    return attempt


def test_the_circuit_opens_after_the_retries_and_closes_with_a_response():
    circuit, clock = breaker()
    with pytest.raises(ServiceAwayError, match="gone"):
        circuit.call(away(clock, 3.0))
    assert circuit.is_open
    asked = []
    with pytest.raises(ServiceAwayError, match=r"not asked.*; the last attempt failed: gone"):
        circuit.call(lambda: asked.append(1))
    assert not asked
    clock.now += circuit_breaker.PROBE_EVERY_S
    assert circuit.call(lambda: 5) == 5
    assert not circuit.is_open


def test_a_failure_keeps_whether_it_opened_the_circuit():
    circuit, clock = breaker()
    with pytest.raises(ServiceAwayError, match="gone") as opened:
        circuit.call(away(clock, 3.0))
    with pytest.raises(ServiceAwayError, match="not asked") as refused:
        circuit.call(lambda: 5)
    clock.now += circuit_breaker.PROBE_EVERY_S
    circuit.call(lambda: 5)  # as another thread may, before the failures are looked at
    assert opened.value.circuit_is_open
    assert refused.value.circuit_is_open


def test_an_open_circuit_lets_one_request_through_now_and_then():
    circuit, clock = breaker(retry_timeout_s=0.0)
    for _ in range(3):
        with pytest.raises(ServiceAwayError, match="gone"):
            circuit.call(away(clock))
        with pytest.raises(ServiceAwayError, match="not asked"):
            circuit.call(away(clock))
        clock.now += circuit_breaker.PROBE_EVERY_S


def test_a_service_that_refuses_a_request_is_not_away():
    circuit, clock = breaker()
    with pytest.raises(ServiceAwayError):
        circuit.call(away(clock, 11.0))
    clock.now += circuit_breaker.PROBE_EVERY_S
    with pytest.raises(ZeroDivisionError):
        circuit.call(lambda: 1 / 0)
    assert not circuit.is_open


def test_closing_ends_the_pauses(monkeypatch):
    monkeypatch.setattr(circuit_breaker, "FIRST_PAUSE_S", HANG_S)
    circuit, clock = breaker()
    with pytest.raises(ScorerClosedError):
        circuit.call(lambda: circuit.close() or away(clock)())
