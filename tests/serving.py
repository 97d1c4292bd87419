"""A server of `germline serve` in a thread, and what tests ask it."""

import json
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from openai import APIStatusError

from germline.services.serve import endpoint
from tests.hang_limit import HANG_S


@contextmanager
def serving(source, **more):
    """Serve in a thread; the block gets the URL of the API."""
    with endpoint(str(source), port=0, **more) as (server, _), server.in_background() as address:
        yield f"{address}/v1"


def chat(client, question, model="center", **more):
    """Return the greedy answer to a question."""
    messages = [{"role": "user", "content": question}]
    more = {"temperature": 0, "max_tokens": 24} | more
    return client.chat.completions.create(model=model, messages=messages, **more)


def text_of(response):
    return response.choices[0].message.content


def refused(call, *args, **more):
    with pytest.raises(APIStatusError) as caught:
        call(*args, **more)
    return caught.value


def raw(url, body, path="/chat/completions"):
    """Return the status and the error of a request that no client would send."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=HANG_S)
    return caught.value.code, json.loads(caught.value.read())["error"]
