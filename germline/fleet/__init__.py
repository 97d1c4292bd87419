"""Engines that keep the same weights: one in this process, or several in others or on a cluster.

local_fleet.py       one engine in this process: the smallest fleet
remote_fleet.py      several remote engines: the same updates, digests compared, engines rebuilt
quorum.py            which members are evaluated, and when a generation closes without the others
worker_pool.py       hands jobs to remote engines and replaces those that are lost
hang_detector.py     how long a job may take before its engine counts as hung
remote_engine.py     what processes and clusters must offer, and the states of a remote engine
worker_jobs.py       what a remote engine is sent, and how states are brought to other engines
engine_queries.py    read-only questions to engines, the same for every fleet
engine_processes.py  engines in processes of this machine
ray_engines.py       engines as Ray actors
"""

from germline.fleet.local_fleet import LocalFleet

__all__ = ["LocalFleet"]
