"""A `hocket node` that is kept running: the part of a Ray actor that knows nothing of Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import psutil  # type: ignore[import-untyped]

from gateway.cluster.plan import FleetPlan, Keeping, NodeReport
from gateway.engine.restart_policy import RestartPolicy
from gateway.node.engine_record import read_record
from gateway.node.node_manager import DONE, ORDERS, SUPERSEDED

HANG_UP_SECONDS = 5.0  # that a manager of before may take to end
END_SECONDS = 5.0  # that one may take longer than its drain, before it is killed
_RECORD, _LOG = "manager.json", "node.log"
_CREATED_TOLERANCE = 0.5  # seconds: the system counts ticks
_ALWAYS = 1 << 30  # restarts


class _Record(msgspec.Struct, frozen=True):
    pid: int
    created: float  # pids come round


class KeptManager:
    """Its child has a session of its own: it outlives this process, and the next one takes its place."""

    def __init__(self, name: str, plan: FleetPlan, machine: str, advertise: str | None) -> None:
        """advertise: this machine's address for the fleet, where the plan does not say one."""
        self._name, self._plan, self._machine = name, plan, machine
        self._folder = Path(plan.file.run_dir) / machine / name
        self._advertise = advertise
        self._child: subprocess.Popen[bytes] | None = None
        self._keeping = Keeping.RUNNING
        self._num_restarts = 0
        self._last_exit = ""
        self._had_engine = False
        self._told = plan
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keep", daemon=True)
        self._thread.start()

    def report(self, told: FleetPlan | None = None) -> NodeReport:
        """told: the plan now, which is kept for who has lost it."""
        if told is not None and told.generation >= self._told.generation:
            self._told = told
        engine, child = read_record(self._folder), self._child
        return NodeReport(
            name=self._name,
            digest=self._plan.digest,
            generation=self._plan.generation,
            keeping=self._keeping,
            machine=self._machine,
            pid=0 if child is None or child.returncode is not None else child.pid,
            num_restarts=self._num_restarts,
            last_exit=self._last_exit,
            engine_pid=0 if engine is None else engine.pid,
            is_ready=engine is not None and bool(engine.incarnation),
            is_adopted=self._had_engine,
            plan=self._told,
        )

    def drain(self) -> None:
        """For good: it ends when what it has open has ended, or its --drain-timeout-ms is over. Once more: at once."""
        if self._keeping is Keeping.LEFT:
            self._keeping = Keeping.ENDED
        if self._keeping in (Keeping.RUNNING, Keeping.DRAINING):
            self._keeping = Keeping.DRAINING
            self._is_ending.set()
            self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(number)

    # ---- its thread ----

    def _keep(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        _hang_up(self._folder)
        self._had_engine = read_record(self._folder) is not None
        policy = RestartPolicy(_ALWAYS)
        while not self._is_ending.is_set():
            self._child = self._start()
            if self._is_ending.is_set():  # the order came while there was no child yet
                self._send(signal.SIGTERM)
            status = self._child.wait()
            if not self._is_ending.is_set() and status in (DONE, SUPERSEDED):
                self._keeping = Keeping.LEFT
                return
            if not self._is_ending.is_set():
                self._last_exit = f"status {status}; its log: {self._folder / _LOG} on {self._machine}"
                self._num_restarts += 1
                self._is_ending.wait(policy.delay(time.monotonic()) or 0.0)
        self._keeping = Keeping.ENDED

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gateway.cli.main", "node", *self._plan.file.node_arguments()]
        command += [f"--name={self._name}", f"--run-dir={self._folder}"]
        if self._advertise is not None and "advertise" not in self._plan.file.node:
            command.append(f"--advertise={self._advertise}")
        # Orders wait until it knows what they mean: one that comes before would end it, and leave its engine behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ORDERS)
        try:
            with (self._folder / _LOG).open("ab") as log:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        record = _Record(child.pid, psutil.Process(child.pid).create_time())
        (self._folder / _RECORD).write_bytes(msgspec.json.encode(record))
        return child


def _hang_up(folder: Path) -> None:
    """The manager of who kept it before: it ends, and its engine runs on."""
    try:
        record = msgspec.json.decode((folder / _RECORD).read_bytes(), type=_Record)
        manager = psutil.Process(record.pid)
        if abs(manager.create_time() - record.created) > _CREATED_TOLERANCE:
            return
        manager.send_signal(signal.SIGHUP)
        try:
            manager.wait(HANG_UP_SECONDS)
        except psutil.TimeoutExpired:
            manager.kill()
            manager.wait(HANG_UP_SECONDS)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, psutil.Error):
        return
