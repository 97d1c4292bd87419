"""How much travels for a job and for its answer.

Measured as the bytes pickle makes of them, which is what a pipe carries and, to within an envelope
of a few hundred bytes that a cluster adds, what goes over a network.
"""

import pickle

from germline.fleet.jobs import Apply, Digest, Dimension, Job, Play, Scales
from germline.traffic import Traffic

_WEIGHED = (Play, Apply, Digest, Scales, Dimension)
"""What a generation consists of; the others carry states, or hand engines the journal."""


def sent(job: Job) -> Traffic:
    """Return what it takes to hand out a job."""
    if not isinstance(job, _WEIGHED):
        return Traffic()
    prompts = [example.prompt for example in job.examples] if isinstance(job, Play) else []
    return Traffic(sent=_size(job), text=sum(len(_bytes(one)) for one in prompts))


def received(job: Job, answer: object) -> Traffic:
    """Return what it takes to bring back what a job returned, which was found credible."""
    if not isinstance(job, _WEIGHED):
        return Traffic()
    text = 0
    if isinstance(job, Play) and isinstance(answer, list):
        written = [completion for row in answer for completion in row]
        # Together, as in the answer: what members wrote alike may be one object, pickled once.
        text = _size([(one.text, one.tokens) for one in written])
    return Traffic(received=_size(answer), text=text)


def _size(value: object) -> int:
    return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
