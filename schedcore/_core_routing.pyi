"""schedcore._core.routing: which node of a fleet serves a request. Contract: cpp/core/routing/route.h, node_table.h.

`from schedcore.routing.route import ...`. Times are seconds on one clock of the table's owner.
"""

import enum
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from schedcore._core import RequestClass
from schedcore._core_algorithms import LatencyModel

Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

class NodeState(enum.IntEnum):
    UP = 0
    SUSPECT = 1  # silent: nothing new goes there
    DRAINING = 2
    GONE = 3  # what it held is forgotten

class Routing(enum.IntEnum):
    COST = 0
    ADVISED = 1
    LEAST_LOADED = 2
    STICKY = 3
    ROUND_ROBIN = 4
    PREFILL_DECODE = 5

class RouteReason(enum.IntEnum):
    NONE = 0
    CHEAPEST = 1
    HOME = 2
    ADVISED = 3
    LEAST_LOADED = 4
    TURN = 5
    SPLIT = 6

class NodeTraits:
    """What an engine says of itself once. Infinite: whatever it has been sent is taken to be there still."""

    def __init__(
        self,
        latency: LatencyModel,
        *,
        max_batched_tokens: float = 2048,
        device_tokens: float = ...,
        kept_tokens: float = ...,
        bytes_per_token: float = 0.0,
        restore_bytes_per_second: float = 0.0,
        machine: int = 0,
        pulls: bool = True,
        prefills: bool = True,
        decodes: bool = True,
    ) -> None: ...

class NodeLoad:
    """A report: when it was made, the seconds until a request that came then would be begun, and what is there."""

    def __init__(
        self, as_of: float, queue_seconds: float, num_waiting: float, num_running: float, running_tokens: float
    ) -> None: ...

class RouteOptions:
    def __init__(
        self,
        routing: Routing = Routing.ADVISED,
        *,
        stay_seconds: float = 0.05,
        stay_ratio: float = 0.2,
        equal_seconds: float = 0.002,
        equal_ratio: float = 0.05,
        advised_ratio: float = 2.0,
        miss_weight: float = 1.0,
        decode_weight: float = 0.05,
        num_least: int = 4,
        num_drawn: int = 2,
        salt: int = 0,
    ) -> None: ...
    @property
    def routing(self) -> Routing: ...

class RouteRequest:
    def __init__(
        self,
        number: int,
        num_tokens: float,
        *,
        keys: UInt64 | None = None,
        tokens_per_key: float = 512,
        session: int = 0,
        expected_outputs: float = 128,
        age_seconds: float = 0.0,
        ttft_target_seconds: float = ...,
        request_class: RequestClass = RequestClass.ONLINE,
        priority: int = 0,
        lead_seconds: float = 0.0,
        excluded: int | None = None,
    ) -> None:
        """`number` differs between requests. Reads the keys in place: they must not change.

        Raises TypeError, ValueError.
        """

class Choice:
    @property
    def node(self) -> int | None:
        """None: there is none."""
    @property
    def source(self) -> int | None:
        """Whose blocks are to be pulled; None: nobody's."""
    @property
    def reason(self) -> RouteReason: ...
    @property
    def cost(self) -> float:
        """Seconds, all terms."""
    @property
    def ttft_seconds(self) -> float:
        """From now, as predicted."""
    @property
    def prefill_seconds(self) -> float: ...
    @property
    def pull_seconds(self) -> float: ...
    @property
    def cached_tokens(self) -> float: ...

class NodeTable:
    def __init__(
        self, *, max_sessions: int = 1 << 20, max_prefixes: int = 1 << 18, pull_bytes_per_second: float = 1e9
    ) -> None: ...
    def add_node(self, traits: NodeTraits, incarnation: int) -> int:
        """The node's number, from 0. Nodes are never removed: one that is gone may come back."""
    def restart_node(self, node: int, traits: NodeTraits, incarnation: int) -> None:
        """Another process under the old name: nothing of the old one is known any more."""
    def set_state(self, node: int, state: NodeState) -> None: ...
    def note_load(self, node: int, incarnation: int, load: NodeLoad) -> None:
        """Ignored from another incarnation, or if it is older than the last."""
    def note_open(self, node: int, num_open: float) -> None:
        """Whoever sees requests end knows more than the last report."""
    def note_pull_rate(self, from_machine: int, to_machine: int, bytes_per_second: float) -> None: ...
    def note_session(self, digest: int, node: int, incarnation: int, num_tokens: float) -> None: ...
    def expect_session(self, digest: int, node: int, until: float) -> None: ...
    def meet_session(self, digest: int) -> None:
        """The request has come, or nobody waits for it any more."""
    def forget_session(self, digest: int, node: int) -> None: ...
    def note_choice(self, request: RouteRequest, choice: Choice, now: float) -> None:
        """What a choice adds to the table once it is carried out."""
    def __len__(self) -> int: ...
    @property
    def num_sessions(self) -> int: ...
    @property
    def num_prefixes(self) -> int: ...
    def state(self, node: int) -> NodeState: ...
    def num_open(self, node: int) -> float: ...
    def busy_until(self, node: int) -> float: ...
    def num_routed(self, node: int) -> int: ...
    def session_nodes(self, digest: int) -> list[tuple[int, float]]:
        """Nodes and their tokens, the session's home first."""
    def expected_node(self, digest: int) -> int | None: ...

def route(request: RouteRequest, table: NodeTable, options: RouteOptions, now: float) -> Choice: ...
def cost_of(request: RouteRequest, table: NodeTable, options: RouteOptions, now: float, node: int) -> Choice: ...
def prefix_keys(secret: int, token_ids: Int32, tokens_per_key: int) -> UInt64:
    """One per whole beginning of so many tokens."""

class FleetTrace(TypedDict):
    """Rows in order of time; row r has the keys in [key_offsets[r], key_offsets[r + 1])."""

    arrival_s: npt.NDArray[np.float64]
    num_tokens: Int32
    num_outputs: Int32
    session: npt.NDArray[np.int64]  # its number, < 0: none
    is_follow_up: npt.NDArray[np.uint8]
    key_offsets: npt.NDArray[np.int64]
    keys: UInt64

class FleetLoop:
    """A fleet of nodes by rate: cpp/core/simulation/fleet/fleet_loop.h."""

    def __init__(self, trace: FleetTrace, traits: NodeTraits, route: RouteOptions, **options: float) -> None:
        """options: the fields of FleetOptions. Reads the arrays in place. Raises TypeError, ValueError."""
    def run(self, until: float) -> bool:
        """True if anything is left. Releases the GIL."""
    def __len__(self) -> int: ...
    @property
    def now(self) -> float: ...
    @property
    def num_ended(self) -> int: ...
    def records(self) -> dict[str, npt.NDArray[Any]]:
        """FleetRecords, in order of arrival."""
    def totals(self) -> dict[str, Any]:
        """FleetTotals."""
