"""Graders of episode batches that ask an endpoint as any program would, for tests."""

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from germline.graders.worker_messages import GradeMissingError, PlayedEpisode
from tests.hang_limit import HANG_S


@dataclass(frozen=True)
class AsksTwice:
    """Asks for two replies in each episode; the reward is the length of the last one.

    Attributes:
        token: in the place of the endpoint's own; None: that one.
        model: in the place of the episode's.
    """

    token: str | None = None
    model: str | None = None

    def __call__(self, batch, example):
        with ThreadPoolExecutor(len(batch.episodes)) as threads:
            runs = [threads.submit(self._play, batch, one) for one in batch.episodes]
        return [PlayedEpisode(run.result, "done") for run in runs]

    def _play(self, batch, episode):
        messages = [{"role": "user", "content": f"Begin {episode.row['number']}."}]
        for _ in range(2):
            body = {"model": self.model or episode.model, "messages": messages, **batch.sampling}
            text = self._ask(batch, {**body, "seed": episode.seed})
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "On."}]
        return {"reward": float(len(text))}

    def _ask(self, batch, body):
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {self.token or batch.token}",
        }
        address = f"{batch.url}/chat/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as response:
                return json.load(response)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            raise GradeMissingError(f"{error.code}: {error.read().decode()}") from None


@dataclass(frozen=True)
class Completes(AsksTwice):
    """Continues a text, without a seed and with a limit of its own; rewards the text's value."""

    def _play(self, batch, episode):
        body = {"model": episode.model, "prompt": "A", "max_tokens": 50, "temperature": 1.0}
        headers = {"content-type": "application/json", "authorization": f"Bearer {batch.token}"}
        address = f"{batch.url}/completions"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=HANG_S) as response:
            answer = json.load(response)
        tokens, text = answer["usage"]["completion_tokens"], answer["choices"][0]["text"]
        return {"reward": tokens + int.from_bytes(text.encode()[:4]) / 2**32}
