"""Engines that keep the same weights: one in this process, or several in others or on a cluster.

local_fleet.py          one engine in this process: the smallest fleet
remote_fleet.py         several remote engines: the same updates, digests compared, engines rebuilt
worker_pool.py          hands jobs to remote engines and replaces those that are lost
worker_slot.py          the states of a remote engine, and what changes them
hang_detector.py        how long a job may take before its engine counts as hung
remote_engine.py        what processes and clusters must offer: start, send, stop, outcomes
worker_jobs.py          what a remote engine is sent: to generate, to apply, to restore
engine_queries.py       read-only questions to engines, the same for every fleet
state_transfer.py       brings weights and moments to an engine that was started again
quorum.py               which members are evaluated, and when a generation closes without the others
engine_processes.py     engines in processes of this machine, seen from the process of the run
worker_process.py       the program of such a process
ray_actors.py           engines as Ray actors
ray_cluster.py          starts Ray or joins a cluster
"""

from germline.fleet.local_fleet import LocalFleet

__all__ = ["LocalFleet"]
