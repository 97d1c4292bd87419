"""How much travels for a job and for its answer.

Measured as the bytes pickle makes of them, which is what a pipe carries and, to within an envelope
of a few hundred bytes that a cluster adds, what goes over a network.
"""

import pickle

from germline.comm_bytes import CommBytes
from germline.fleet.engine_queries import DimensionQuery, ScalesQuery
from germline.fleet.worker_jobs import ApplyJob, DigestJob, EngineJob, GenerateJob

_COUNTED = (GenerateJob, ApplyJob, DigestJob, ScalesQuery, DimensionQuery)
"""What a generation consists of; the others carry states, or hand engines the journal."""


def sent_bytes(job: EngineJob) -> CommBytes:
    """Return what it takes to hand out a job."""
    if not isinstance(job, _COUNTED):
        return CommBytes()
    prompts = [example.prompt for example in job.examples] if isinstance(job, GenerateJob) else []
    return CommBytes(sent=_size(job), text=sum(len(_bytes(one)) for one in prompts))


def received_bytes(job: EngineJob, answer: object) -> CommBytes:
    """Return what it takes to bring back what a job returned, which was found credible."""
    if not isinstance(job, _COUNTED):
        return CommBytes()
    text = 0
    if isinstance(job, GenerateJob) and isinstance(answer, list):
        written = [completion for row in answer for completion in row]
        # Together, as in the answer: what members wrote alike may be one object, pickled once.
        text = _size([(one.text, one.tokens) for one in written])
    return CommBytes(received=_size(answer), text=text)


def _size(value: object) -> int:
    return len(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
