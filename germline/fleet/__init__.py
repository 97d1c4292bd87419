"""Engines that keep the same weights: one in this process, or several in others or on a cluster.

A `RemoteFleet` sends jobs (`worker_jobs`) to the remote engines of a `WorkerPool`
(`engine_processes`, `ray_engines`), and compares and rebuilds them.
"""

from germline.fleet.local_fleet import Fleet, LocalFleet

__all__ = ["Fleet", "LocalFleet"]
