"""Requests to a service that is away: retries, and their end."""

import threading
from itertools import count

import pytest

from germline.config.scorers import HttpSettings
from germline.engines.http_client import HttpConnection, RequestRefused
from germline.scorers import NotScoredError, http_service
from germline.scorers.http_service import HttpService, ServiceAwayError
from germline.types import EngineLost
from tests.hang_limit import HANG_S
from tests.scripted_server import listening


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


def connection(url, **settings):
    return HttpConnection("the server", url, **{"timeout_s": HANG_S, **settings})


def replies(*answers):
    """Answer with each reply in turn, and then always with the last."""
    number = count()
    return lambda *_: answers[min(next(number), len(answers) - 1)]


@pytest.mark.parametrize(
    "failure",
    [(503, "starting"), (502, "<html>gateway</html>"), (200, "<html>wait</html>"), (-200, "[1, 2")],
    ids=["starting", "a proxy", "a page", "cut short"],
)
def test_requests_to_an_unavailable_server_are_retried_until_it_is_back(failure):
    with listening(replies(failure, failure, (200, [1, 2]))) as server:
        assert connection(server.url, retry_timeout_s=HANG_S).post("/x", {"a": 1}) == [1, 2]
    assert server.asked == [("/x", {"a": 1})] * 3


@pytest.mark.parametrize("retry_s", [0.0, 0.05])
def test_retries_end_after_the_retry_timeout(retry_s):
    with listening(replies((503, "starting"))) as server:
        with pytest.raises(EngineLost, match=r"the server: /x: answered 503"):
            connection(server.url, retry_timeout_s=retry_s).get("/x")
        assert (len(server.asked) > 1) == (retry_s > 0)


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "too long"}},
        {"success": False, "message": "too long"},
        {"success": False, "error_message": "too long"},
        "too long",
    ],
)
def test_a_refusal_is_final_and_has_the_server_s_reason(answer):
    with listening(replies((400, answer))) as server:
        with pytest.raises(RequestRefused, match=r"/x: refused \(400\): too long") as refused:
            connection(server.url, retry_timeout_s=HANG_S).post("/x", {})
        assert (refused.value.status, refused.value.reason) == (400, "too long")
    assert len(server.asked) == 1


def test_a_server_that_hangs_is_lost_after_the_timeout():
    given_up = threading.Event()

    def hang(*_):
        given_up.wait(HANG_S)
        return 200, []

    with listening(hang) as server:
        with pytest.raises(EngineLost, match=r"no answer within 0\.3 s"):
            connection(server.url, timeout_s=0.3, retry_timeout_s=HANG_S).get("/x")
        given_up.set()


def test_there_is_no_retry_to_a_server_that_has_ended():
    def check_alive():
        raise EngineLost("it ended")

    with listening(replies((503, ""))) as server, pytest.raises(EngineLost, match="it ended"):
        connection(server.url, retry_timeout_s=HANG_S, check_alive=check_alive).get("/x")
    assert len(server.asked) == 1


def test_a_path_of_the_url_is_a_prefix_of_every_path():
    with listening(replies((200, "ok"))) as server:
        assert connection(f"{server.url}/behind/").get("/x") == "ok"
    assert server.asked == [("/behind/x", None)]
