"""The gateway's configuration: frozen, validated once, every setting declared where its field is.

A comment says what `--help` leaves out. Defaults are those of the flags, too.
"""

from __future__ import annotations

import ipaddress
import re
from functools import partial
from typing import Annotated

import msgspec

from gateway.config.engine_urls import is_urls, parse_engine_urls
from gateway.config.target_defaults import TargetDefaults
from gateway.config.webhook_secrets import secrets_by_tenant
from gateway.config.webhook_targets import WebhookTargets
from schedcore.api.cluster_tls import is_loopback
from schedcore.api.frame_socket import NETWORK_SCHEME, network_address
from schedcore.api.setting import POSITIVE, Flag, OneOf, Range, check
from schedcore.api.types import Targets
from schedcore.routing.route import ROUTINGS

_server = partial(Flag, "server")
_engine = partial(Flag, "engine")
_model = partial(Flag, "model")
_offline = partial(Flag, "offline work")
_limit = partial(Flag, "limits")
_fleet = partial(Flag, "fleet")


LIVE_ROUTINGS = tuple(name for name in ROUTINGS if name != "prefill_decode")  # which needs blocks that are pulled
ENGINES = {"hocket": "worker", "vllm": "vllm_engine"}  # names, and the modules that python -m runs


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Server
    host: Annotated[  # :: serves other machines too
        str,
        _server("address to listen on (default: {default}, this machine only; 0.0.0.0 for all, then set a key)"),
    ] = "127.0.0.1"
    allowed_hosts: Annotated[  # in Host and Origin
        tuple[str, ...],
        _server(
            "that clients may call this server by: behind a proxy its public name; .name with all below it, * for any; "
            "repeatable or separated by commas (default: localhost and loopback addresses; beyond this machine any)",
            "NAME",
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        _server(
            "https://name of pages elsewhere that may talk to this server from a browser, * for all; repeatable or "
            "separated by commas (default: none)",
            "ORIGIN",
        ),
    ] = ()
    port: Annotated[int, _server("0 for any free one (default: {default})"), Range(0, 65535)] = 8000
    root_path: Annotated[
        str,
        _server("that a proxy has before every path of this server, such as /llm; without it paths work, too", "PATH"),
    ] = ""
    uds: Annotated[str | None, _server("listen on this Unix socket instead of an address", "PATH")] = None
    ssl_certfile: Annotated[str | None, _server("serve https with this certificate, PEM (default: http)", "FILE")] = (
        None
    )
    ssl_keyfile: Annotated[str | None, _server("its key (default: in the same file)", "FILE")] = None
    api_keys: Annotated[  # each is a tenant of its own; none: everybody may, as one tenant
        tuple[str, ...],
        _server(
            "ask clients for a key; repeatable, keys share no cache (default: $HOCKET_API_KEY, or none)",
            "KEY",
            "api-key",
        ),
    ] = ()
    max_engine_restarts: Annotated[  # 0: a dead engine stays dead
        int, _server("of an engine that dies, within ten minutes; 0: never (default: {default})", "N"), Range(0)
    ] = 10
    typing_webhook_secrets: Annotated[  # none: no webhooks
        tuple[str, ...],
        _server(
            "whsec_..., or KEY:whsec_... with several keys: believe /v1/webhooks/typing signed with it; repeatable "
            "(default: $HOCKET_TYPING_WEBHOOK_SECRET, or none)",
            "SECRET",
            "typing-webhook-secret",
        ),
    ] = ()
    enable_force_include_usage: Annotated[
        bool, _server("tell the usage with every chunk of every stream, asked for or not (default: {default})")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool,
        _server("tokens among log-probabilities as token_id:65, unless a request says otherwise (default: {default})"),
    ] = False
    enable_tokenizer_info_endpoint: Annotated[
        bool, _server("show the tokenizer's configuration and chat template at /tokenizer_info (default: {default})")
    ] = False
    enable_cache_reset: Annotated[  # whoever has a key slows down all others
        bool,
        _server("let clients empty the prefix cache by POST /reset_prefix_cache, to measure (default: {default})"),
    ] = False
    enable_access_log: Annotated[bool, _server("one JSON line per request, without prompts", name="access-log")] = True

    # The engine
    engine: Annotated[  # see engine_urls
        str,
        _engine(
            "that computes: hocket, this server's own; vllm, where it is installed; or servers that run already, such "
            "as http://10.0.0.7:8000, several separated by commas (default: {default}; docs/vllm.md)",
            "ENGINE",
        ),
    ] = "hocket"
    vllm_python: Annotated[  # None: this one
        str | None,
        _engine("of the environment that has vLLM and hocket-server (default: this one)", "FILE"),
    ] = None

    # Fleet
    fleet_listen: Annotated[  # None: an engine of this server's
        str | None,
        _fleet("serve by nodes (`hocket node`) that come to this address, instead of an engine here", "HOST:PORT"),
    ] = None
    cluster_dir: Annotated[
        str | None, _fleet("the cluster's certificates: ca.pem and gateway.pem (`hocket fleet init`)", "DIR")
    ] = None
    insecure_network: Annotated[
        bool, _fleet("plain TCP beyond this machine: whoever reaches the port is a node (default: {default})")
    ] = False
    fleet_wait_ms: Annotated[
        float, _fleet("that requests wait for a node while there is none; then 429 (default: {default})", "N"), POSITIVE
    ] = 10_000.0

    routing: Annotated[
        str, _fleet("which node takes a request (default: {default}; docs/routing.md)"), OneOf(LIVE_ROUTINGS)
    ] = "advised"

    # The model
    served_model_names: Annotated[  # the first is shown where a request names none
        tuple[str, ...],
        _model("name that requests may use; repeatable (default: the model's)", "NAME", "served-model-name"),
    ] = ("demo",)

    tool_call_parser: Annotated[
        str,
        _model("how the model writes its calls of tools (default: {default}, as its chat template does)", "FORMAT"),
        OneOf(
            (
                *("auto", "hermes", "llama3_json", "mistral", "json", "qwen3_coder", "seed_oss", "glm45", "glm47"),
                *("minimax_m2", "deepseek_v3", "deepseek_v31", "deepseek_v32"),
            )
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        _model("how the model marks its thinking (default: {default}, as its chat template does)", "FORMAT"),
        OneOf(
            (
                *("auto", "none", "qwen3", "deepseek_r1", "deepseek_v3", "glm45", "holo2", "mistral", "olmo3"),
                *("seed_oss", "step3"),
            )
        ),
    ] = "auto"

    json_has_space: Annotated[
        bool,
        _model(
            "answers by a JSON schema may have whitespace between tokens (default: {default})", name="json-whitespace"
        ),
    ] = True
    pooler_config: Annotated[
        str | None,
        _model(
            'how embeddings are made, such as {{"pooling_type": "MEAN", "normalize": true}} (LAST, MEAN, CLS; default: '
            "as the checkpoint's sentence-transformers files say, else LAST)",
            "JSON",
        ),
    ] = None

    # Offline work
    enable_offline: Annotated[bool, _offline("serve files and batches (default: {default})", name="offline")] = True
    enable_prefix_order: Annotated[  # off: in the input file's order
        bool, _offline("rows that begin alike run together (default: {default})", name="prefix-order")
    ] = True
    data_dir: Annotated[  # None: the user's, see gateway/config/environment.py
        str | None,
        _offline(
            "where files and batches are kept, one gateway per directory (default: hocket in $XDG_DATA_HOME)", "DIR"
        ),
    ] = None
    database_url: Annotated[
        str | None,
        _offline("such as postgresql://user:password@host/name (default: SQLite in the data directory)", "URL"),
    ] = None
    share_batches: Annotated[  # files lie in the directory, all else in the database
        bool,
        _offline(
            "several gateways run them: all with this, one PostgreSQL --database-url and one --data-dir, on a file "
            "system that all of them have (default: {default})"
        ),
    ] = False
    batch_lease_ms: Annotated[  # longer: a pause of the database or of a gateway makes fewer rows run again
        float,
        _offline(
            "of silence after which others take over the rows of a gateway that shares them (default: {default})", "N"
        ),
        Range(1_000),
    ] = 30_000.0
    webhook_urls: Annotated[
        tuple[str, ...],
        _offline("told when a batch ends; KEY:URL: one API key's batches; repeatable", "URL", "webhook-url"),
    ] = ()
    webhook_secrets: Annotated[  # the file's lines
        tuple[str, ...],
        _offline(
            "whsec_..., one per line, to sign webhooks with; KEY:whsec_... with several API keys. With it, batches "
            "may name a webhook_url in their metadata, too",
            "FILE",
            "webhook-secret-file",
        ),
    ] = ()
    allow_private_webhooks: Annotated[bool, _offline("batches may name private addresses (default: {default})")] = False
    max_file_bytes: Annotated[int, _offline("of an uploaded file (default: {default})", "SIZE"), Range(1)] = 512 * 2**20
    max_batch_file_bytes: Annotated[int, _offline("of a batch's input file (default: {default})", "SIZE"), Range(1)] = (
        200 * 2**20
    )
    max_batch_rows: Annotated[int, _offline("of one batch (default: {default})", "N"), Range(1)] = 50_000
    max_stored_bytes: Annotated[  # gateway/offline/store/accounts.py; more is refused
        int, _offline("of all that one API key stores (default: {default})", "SIZE"), Range(1)
    ] = 64 * 2**30
    max_result_bytes: Annotated[
        int, _offline("of one row's answer; a row with a larger one fails (default: {default})", "SIZE"), Range(1)
    ] = 64 * 2**20
    max_pending_rows: Annotated[  # more are refused
        int, _offline("of one API key's batches that wait to be run (default: {default})", "N"), Range(1)
    ] = 1_000_000
    look_ahead_rows: Annotated[  # more: better prefix sharing, slower to react
        int,
        _offline("of batches that the engine sees at a time; keep it below what it queues (default: {default})", "N"),
        Range(1),
    ] = 512
    look_ahead_tokens: Annotated[int, _offline("of their prompts (default: {default})", "N"), Range(1)] = 131_072
    max_promoted_rows: Annotated[
        int,
        _offline(
            "that run as online requests at a time, when a batch's window nears its end (default: {default})", "N"
        ),
        Range(0),
    ] = 64

    # Limits
    max_queue_requests: Annotated[  # waiting for their first token
        int, _limit("waiting requests per class before others get 429 (default: {default})", "N"), Range(1)
    ] = 2048
    max_queue_tokens: Annotated[
        int,
        _limit("prompt tokens of waiting requests per class before others get 429 (default: {default})", "N"),
        Range(1),
    ] = 8_000_000
    max_body_bytes: Annotated[  # larger bodies are answered 413; a body is held in memory while it is read
        int, _limit("of a request (default: {default})", "SIZE"), Range(1)
    ] = 16 * 2**20
    request_timeout_ms: Annotated[
        float, _limit("from arrival to the last token, 0 for none (default: {default})", "N"), Range(0)
    ] = 600_000.0
    flex_timeout_ms: Annotated[  # they wait for online traffic to pause
        float, _limit("the same for requests of service tier flex (default: {default})", "N"), Range(0)
    ] = 3_600_000.0
    body_timeout_ms: Annotated[float, _limit("for a client to send its body (default: {default})", "N"), POSITIVE] = (
        60_000.0
    )
    head_timeout_ms: Annotated[  # then 408
        float, _limit("for a client to send the head of a request (default: {default})", "N"), POSITIVE
    ] = 20_000.0
    idle_timeout_ms: Annotated[  # longer than proxies keep connections (600 s)
        float, _limit("for its next request on the same connection (default: {default})", "N"), POSITIVE
    ] = 620_000.0
    max_connections: Annotated[  # beyond, who waits gives way, then 503
        int,
        _limit("of clients, fewer where descriptors are; /health has places of its own (default: {default})", "N"),
        Range(1),
    ] = 8192
    engine_timeout_ms: Annotated[
        float,
        _limit(
            "of silence, longer than any step: then the engine has hung and is restarted; 0: never "
            "(default: {default})",
            "N",
        ),
        Range(0),
    ] = 60_000.0
    resume_wait_ms: Annotated[  # the pause that a client sees is this, the queue and the prompt once more
        float,
        _limit(
            "for an engine that died to be there again, then open requests go on where they were; 0: they end with it "
            "(default: {default})",
            "N",
        ),
        Range(0),
    ] = 120_000.0
    drain_timeout_ms: Annotated[
        float, _limit("for open requests to finish after SIGTERM (default: {default})", "N"), Range(0)
    ] = 30_000.0
    keepalive_ms: Annotated[  # so that proxies keep the stream
        float,
        _limit("of silence before a first token, then streams get a comment (default: {default})", "N"),
        POSITIVE,
    ] = 15_000.0
    max_advisories_per_second: Annotated[
        float, _limit("per tenant; more get 429 (default: {default})", "N"), POSITIVE
    ] = 100.0
    max_advisory_bytes_per_second: Annotated[  # they may have to be tokenised
        float, _limit("of their bodies, per tenant (default: {default})", "SIZE"), POSITIVE
    ] = 256 * 2**10
    max_draft_tokens_per_second: Annotated[
        float,
        _limit("of drafts, computed and not found in the cache, per tenant (default: {default})", "N"),
        POSITIVE,
    ] = 4096.0
    max_lease_bytes: Annotated[  # for requests that were announced and have not come
        int, _limit("of device memory that one tenant's advisories may hold (default: {default})", "SIZE"), Range(1)
    ] = 4 * 2**30
    max_response_bytes: Annotated[  # the oldest of whoever holds most make room
        int,
        _limit("of memory for answers of /v1/responses that may be gone on from; 0: none (default: {default})", "SIZE"),
        Range(0),
    ] = 64 * 2**20
    max_advised_sessions: Annotated[int, Range(1)] = 10_000  # remembered; the least recently advised are forgotten
    max_lease_ms: Annotated[float, _limit("of an advisory (default: {default})", "N"), POSITIVE] = 300_000.0  # then cut
    allow_priority: Annotated[
        bool,
        _limit(
            "whether requests may ask for a priority, or for service_tier priority; off: they are served as the others "
            "are (default: {default})"
        ),
    ] = True
    ttft_target_ms: Annotated[  # for policies that hold targets
        float | None, _limit("time to first token that online requests should see", "N"), POSITIVE
    ] = None
    itl_target_ms: Annotated[
        float | None, _limit("time between any two tokens that they should see", "N"), POSITIVE
    ] = None
    tpot_target_ms: Annotated[  # cumulative deadlines: who ran ahead may pause
        float | None, _limit("time per token, all of a request's together, that they should see", "N"), POSITIVE
    ] = None
    api_key_targets: Annotated[  # instead of the three above
        tuple[str, ...],
        _limit(
            "what requests of one API key should see, any of the three, such as KEY:ttft=500,tpot=40; repeatable. "
            "A request may ask for targets of its own",
            "KEY:NAME=MS,...",
        ),
    ] = ()

    def __post_init__(self) -> None:
        check(self)
        _require(
            self.engine in ENGINES or is_urls(self.engine),
            f"engine must be {' or '.join(ENGINES)}, or the address of a server, not {self.engine!r}",
        )
        _ = self.engine_urls
        _require(self.vllm_python is None or self.engine == "vllm", "vllm_python needs engine vllm")
        if self.fleet_listen is not None:
            _require(self.engine == "hocket" and self.vllm_python is None, "fleet_listen: nodes say what computes")
            host, _ = network_address(NETWORK_SCHEME + self.fleet_listen)
            check_exposure({host}, self.cluster_dir, is_insecure=self.insecure_network)
        _require(not self.share_batches or self.database_url is not None, "share_batches needs database_url")
        _require(self.ssl_keyfile is None or self.ssl_certfile is not None, "ssl_keyfile needs ssl_certfile")
        _require(bool(self.served_model_names), "served_model_names must not be empty")
        _require(all(self.api_keys), "an API key must not be empty")
        _require(all(map(_is_host, self.allowed_hosts)), "allowed_hosts are names without scheme and port, or *")
        _require(all(map(_is_origin, self.allowed_origins)), "allowed_origins are scheme://name[:port], null, or *")
        is_path = re.fullmatch(r"/?|(/[^/?#\s]+)+/?", self.root_path) is not None
        _require(is_path, "root_path is a path such as /llm")
        secrets_by_tenant(self.typing_webhook_secrets, self.api_keys)
        _ = self.webhook_targets
        _ = self.target_defaults

    @property
    def engine_urls(self) -> tuple[str, ...]:
        """Of servers that compute; none: an engine of this server's."""
        return parse_engine_urls(self.engine) if is_urls(self.engine) else ()

    @property
    def webhook_targets(self) -> WebhookTargets:
        return WebhookTargets.parse(
            self.webhook_urls, self.webhook_secrets, self.api_keys, allow_private=self.allow_private_webhooks
        )

    @property
    def target_defaults(self) -> TargetDefaults:
        everybody = Targets(self.ttft_target_ms, self.itl_target_ms, self.tpot_target_ms)
        return TargetDefaults.parse(everybody, self.api_key_targets, self.api_keys)

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the server."""
        if self.uds is not None:
            return False
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


def check_exposure(hosts: set[str], cluster_dir: str | None, *, is_insecure: bool) -> None:
    """Raises ValueError where frames of a fleet would leave the machine in plain."""
    if cluster_dir is None and not is_insecure and not all(map(is_loopback, hosts)):
        raise ValueError(
            "beyond this machine frames need certificates: cluster_dir (`hocket fleet init`), or insecure_network"
        )


def _is_host(name: str) -> bool:
    return name == "*" or re.fullmatch(r"[^\s/:@]+", name) is not None or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_origin(origin: str) -> bool:
    return origin in ("*", "null") or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/@]*", origin.lower()) is not None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
