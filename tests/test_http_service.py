"""Requests to a service that is away: retries, and their end."""

import threading

import pytest

from germline.config.scorers import HttpSettings
from germline.engines.http_client import RequestRefused
from germline.scorers import NotScoredError, http_service
from germline.scorers.http_service import HttpService, ServiceAwayError
from germline.types import EngineLost
from tests.hang_limit import HANG_S


class Service(HttpService):
    """A service whose requests are calls, by a clock that only they move."""

    def __init__(self, retry_timeout_s=10.0):
        self.now = 0.0
        config = HttpSettings(url="http://s", retry_timeout_s=retry_timeout_s)
        super().__init__(config, str, clock=lambda: self.now)
        self.asked = []
        setattr(self._connection, "post", self.asked_for)  # noqa: B010 - a method, to mypy

    def asked_for(self, _path, attempt):
        self.asked.append(attempt)
        return attempt()

    def away(self, seconds=0.0):
        self.now += seconds
        raise EngineLost("gone")


def refuse():
    raise RequestRefused("no", 400, "no")


def test_requests_fail_at_once_for_a_while_after_one_that_was_lost():
    service = Service()
    with pytest.raises(ServiceAwayError, match="gone"):
        service.post("", lambda: service.away(11.0))
    with pytest.raises(ServiceAwayError, match="not asked, as it is away: gone"):
        service.post("", lambda: 5)
    assert len(service.asked) == 1
    service.now += http_service.AWAY_S
    assert [service.post("", lambda: 5) for _ in range(2)] == [5, 5]


@pytest.mark.parametrize(("failures", "answers"), [(2, True), (3, False)])
def test_a_request_with_which_the_service_fails_is_sent_twice_more(monkeypatch, failures, answers):
    monkeypatch.setattr(http_service, "ERROR_PAUSES_S", (0.0, 0.0))
    service = Service()

    def fails():
        if len(service.asked) <= failures:
            raise RequestRefused("it failed", 500, "it failed")
        return 5

    if answers:
        assert service.post("", fails) == 5
    else:
        with pytest.raises(RequestRefused):
            service.post("", fails)
    assert len(service.asked) == 3


def test_a_request_that_alone_is_never_answered_stops_no_other():
    service = Service()

    def alone():
        service.now += 1.0
        with pytest.raises(RequestRefused):
            service.post("", refuse)
        service.away(6.0)

    with pytest.raises(NotScoredError, match="gone") as caught:
        service.post("", alone)
    assert not isinstance(caught.value, ServiceAwayError)
    assert service.post("", lambda: 5) == 5


def test_a_closed_service_is_not_asked_again():
    service = HttpService(HttpSettings(url="http://127.0.0.1:9", retry_timeout_s=HANG_S), str)
    threading.Timer(0.3, service.close).start()
    with pytest.raises(ServiceAwayError, match="closed"):
        service.post("", {})
