"""A fleet on a Ray cluster, for an operator's command line: connected for as long as the command runs."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

from gateway.cluster.errors import RayFleetError
from gateway.cluster.fleet_file import FleetFile
from gateway.cluster.plan import FleetPlan, FleetReport
from gateway.cluster.ray_leader import RayLeader
from gateway.config.environment import use_ray_token

NAMESPACE = "hocket"
ANSWER_SECONDS = 60.0  # generous: the leader's process may have to start
DIAL_SECONDS = 5.0
LOOK_SECONDS = 0.5


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """address: HOST:PORT of the head, auto for the cluster that this machine is of. Raises RayFleetError."""
    use_ray_token()
    _look_for(address)
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise RayFleetError(
            f"no Ray cluster at {address} takes us: {' '.join(str(error).split())[:300]} "
            "(`ray start --head` makes one; its token: RAY_AUTH_TOKEN or ~/.ray/auth_token)"
        ) from None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # where Ray's threads say that a machine is lost
            yield
    except RayError as error:
        raise RayFleetError(f"the Ray cluster at {address}: {' '.join(str(error).split())[:500]}") from None
    finally:
        ray.shutdown()


def _look_for(address: str) -> None:
    """Ray itself looks for minutes. Raises RayFleetError."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():  # auto, or a URL
        return
    try:
        socket.create_connection((host, int(port)), DIAL_SECONDS).close()
    except OSError as error:
        raise RayFleetError(f"nobody listens at {address}: {error}; `ray start --head` makes a cluster") from None


class RayFleet:
    """REQUIRES: connected."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._leader_name = f"{name}-leader"

    def up(self, file: FleetFile) -> None:
        """Or changes it to what the file says: nodes that run are replaced one by one where they must be."""
        if self._leader() is not None:
            self._ask("change", msgspec.json.encode(file))
            return
        actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(RayLeader)
        options = {"name": self._leader_name, "lifetime": "detached", "get_if_exists": True}
        actor.options(**options).remote(msgspec.json.encode(FleetPlan(file, file.nodes, 1)))
        self._ask("report")

    def report(self) -> FleetReport:
        return msgspec.json.decode(self._ask("report"), type=FleetReport)

    def scale(self, num_nodes: int) -> None:
        scaling = self.report().plan.file.scaling
        if scaling is not None:
            raise RayFleetError(
                f"the number of nodes follows {', '.join(scaling.metrics_urls)}: change [scaling] instead"
            )
        self._ask("scale", num_nodes)

    def down(self, on_look: Callable[[FleetReport], None], seconds: float) -> bool:
        """False: nodes were left after so many seconds; they go on ending."""
        self._ask("scale", 0)
        if not self.wait(lambda report: not report.nodes and report.plan.num_nodes == 0, on_look, seconds):
            return False
        ray.kill(self._leader(), no_restart=True)
        return True

    def wait(
        self, is_done: Callable[[FleetReport], bool], on_look: Callable[[FleetReport], None], seconds: float
    ) -> bool:
        deadline = time.monotonic() + seconds
        while True:
            report = self.report()
            on_look(report)
            if is_done(report):
                return True
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_SECONDS)

    def _ask(self, method: str, *arguments: object) -> Any:
        """Of the leader, which may be started again meanwhile: no method minds being called twice."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while (leader := self._leader()) is not None:
            with contextlib.suppress(ActorUnavailableError, GetTimeoutError):
                return ray.get(getattr(leader, method).remote(*arguments), timeout=deadline - time.monotonic())
            if time.monotonic() > deadline:
                raise RayFleetError(f"the fleet's leader has not answered for {ANSWER_SECONDS:g} s: see `ray status`")
            time.sleep(LOOK_SECONDS)
        raise RayFleetError(f"no fleet {self._name} runs there: `hocket fleet up FILE --ray ...` starts one")

    def _leader(self) -> Any:
        try:
            return ray.get_actor(self._leader_name)
        except ValueError:
            return None
