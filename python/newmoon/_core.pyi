"""The C++ core. Import from `newmoon`, not from here."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from typing_extensions import Buffer

class Error(RuntimeError):
    """What the core refuses or cannot do."""

    code: Literal["bad_request", "unavailable", "deadline", "busy", "corrupt", "fenced", "internal"]

def set_log_level(name: Literal["debug", "info", "warning", "error"]) -> None:
    """Which lines of the core go to stderr; "warning" at the start."""

class BlockHasher:
    """vLLM's chained block hash, bit for bit."""

    def __init__(
        self,
        *,
        algorithm: Literal["sha256", "sha256_cbor", "xxhash_cbor"] = "sha256",
        block_size: int = 16,
        seed: str | None = None,
    ) -> None:
        """`block_size`: tokens a block. `seed`: PYTHONHASHSEED; None: vLLM's fixed one."""

    @property
    def block_size(self) -> int: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def none_hash(self) -> bytes:
        """What the first block of every chain has for a parent."""

    def hash_blocks(
        self,
        tokens: Sequence[int],
        *,
        cache_salt: str = "",
        lora: tuple[str, str] | None = None,
    ) -> list[bytes]:
        """One hash a full block of `tokens`. `lora`: name and path of the adapter."""

class Scope:
    """All that must agree for KV bytes to be reusable. Immutable."""

    def __init__(
        self,
        *,
        model: str,
        layout: str,
        namespace: str = "",
        digest: bytes | None = None,
        label: str | None = None,
    ) -> None:
        """A named scope: of weights known by the SHA-256 of their tensors, or by a label that
        you vouch for. Unique scopes come from a Fence."""

    @property
    def namespace(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def layout(self) -> str: ...
    @property
    def id(self) -> str:
        """32 hex digits."""

    @property
    def is_unique(self) -> bool:
        """Nobody else has it, and nobody can return to it."""

    def __hash__(self) -> int: ...

class StoreStats(TypedDict):
    blocks: int
    bytes: int
    bytes_to_free: int  # purged or evicted, not yet returned; counts in the budget
    budget_bytes: int  # 0: the store has none of its own
    evicted_blocks: int
    refused_late_puts: int  # puts into a unique scope that was purged
    unfinished_purges: int  # scopes whose bytes are not all back yet
    owed_rechecks: int  # purged scopes to be looked at again, for what was half written
    recheck_left_s: int  # until the last of them is due
    breaker_opens: int  # how often the store did not answer and was left alone
    calls_without_backend: int  # answered meanwhile

class ScopeUsage(TypedDict):
    scope: str
    description: str
    blocks: int
    bytes: int
    holders: list[str]  # engines that use it now

class Store:
    """Where blocks go; made by open_store(). Any thread may call. The child of a fork opens its own.

    Methods raise Error: "unavailable" or "deadline" if the store cannot be reached, "bad_request"
    if it is closed or the scope is None (a sealed fence's), and what each says below.
    """

    def put(self, scope: Scope | None, block_hash: bytes, data: Buffer) -> None:
        """Values are immutable: the first put of a key stays. "busy": no room now; "fenced":
        the unique scope was purged."""

    def get(self, scope: Scope | None, block_hash: bytes, out: Buffer) -> bool:
        """Fills `out`; False if the block is not there. "bad_request": the value is longer or
        shorter than `out`; the message has both lengths. "corrupt": the bytes are not those that
        were put, or not all of them. `out` is undefined after either."""

    def lookup(self, scope: Scope | None, block_hashes: Sequence[bytes]) -> int:
        """How many leading blocks are there."""

    def purge(self, scope: Scope | None) -> None:
        """Makes all its blocks unfindable at once; the memory comes back behind. Later puts
        into a unique scope are refused.

        On Mooncake this process hides them, and removes them behind: other processes find what is
        not removed yet, and close() ends the removal: see stats()["unfinished_purges"]. "newmoon
        purge --wait" sees it to its end."""

    def stats(self) -> StoreStats: ...
    def scopes(self) -> list[ScopeUsage]: ...
    def close(self) -> None:
        """Raises Error: "busy" while another call is under way. What is open when Python ends is
        closed then."""

    def __enter__(self) -> Store: ...
    def __exit__(self, *exception: object) -> None: ...

def open_store(url: str, *, budget_bytes: int = 1 << 30, timeout_s: float = 1.0) -> Store:
    """"memory": in this process, `budget_bytes` at most; "ipc://PATH": one that
    `newmoon store-server` shares; "mooncake://HOST:PORT[?option=value&...]": Mooncake's, or
    "mooncake://" with MOONCAKE_CONFIG_PATH. Each call to the last two ends within `timeout_s`,
    which is more than 0 and at most a day.

    Mooncake needs its wheel in this environment (mooncake-transfer-engine-non-cuda).
    Raises Error: "bad_request" for another URL, "unavailable" if there is no Mooncake master;
    an ipc:// store that is not there yet is used as soon as it is.
    """

class Fence:
    """Which scope is right now. Starts sealed, at epoch 1. One thread.

    Each of seal(), adopt() and reset() moves the epoch on by one, in constant time, and returns
    the scope that was left, if any; if that is unique, its bytes may be purged.
    """

    def __init__(self, *, model: str, layout: str, namespace: str = "") -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def sealed(self) -> bool: ...
    @property
    def scope(self) -> Scope | None:
        """None while sealed: neither look up nor put."""

    def seal(self) -> Scope | None:
        """Before weights are written."""

    def adopt(self, *, digest: bytes | None = None, label: str | None = None) -> Scope | None:
        """Opens the scope of these weights; without an identity, one that nobody else has."""

    def reset(
        self, *, keep_verified: bool = False
    ) -> tuple[Literal["kept", "new", "sealed"], Scope | None]:
        """An explicit reset. A named scope is kept if nothing was scheduled since the adopt, or
        `keep_verified`; else the scope is a new, unique one. Sealed stays sealed."""

    def note_scheduled(self) -> None:
        """Something runs under the current scope: the next reset() is no repetition."""

class LookupReset(TypedDict):
    success: bool
    fenced: bool
    error: str

class LookupKeyClient:
    """Asks the lookup server of vLLM's own MooncakeStoreConnector, whose rank 0 has one. One
    thread.

    That server knows neither scopes nor epochs: what it finds may be of any weights.
    """

    def __init__(
        self, endpoint: str, *, dialect: Literal["vllm", "seed"] = "vllm", timeout_s: float = 1.0
    ) -> None:
        """`endpoint`: ipc://PATH. `dialect`: "vllm" is 0.32's. Each call ends within
        `timeout_s`. Raises Error: "bad_request"."""

    def lookup(self, num_tokens: int, block_hashes: Sequence[bytes]) -> int:
        """Length of the hit in tokens. Raises Error: "deadline"."""

    def reset(self) -> LookupReset:
        """Has it remove everything from its store, whoever put it there. `fenced` is False:
        what it computes meanwhile may come back."""

# The two roles of newmoon.vllm. Not for other callers: they take what vLLM hands them.

def check_store(url: str) -> None:
    """Raises Error: "bad_request" for a URL at which no store can be; opens nothing."""

def store_is_away(url: str, *, timeout_s: float) -> str | None:
    """Why an ipc:// store does not answer now; None: it does, or is of another kind."""

class ConnectorReset(TypedDict):
    success: bool
    degraded: bool
    scope: Literal["kept", "new", "sealed"]
    silent_ranks: list[int]
    dropped_loads: int
    dropped_saves: int
    removed: int
    error: str

class ConnectorScheduler:
    """One thread."""

    def __init__(
        self,
        *,
        endpoints: Sequence[str],
        namespace: str,
        model: str,
        layout: str,
        block_size: int,
        min_load_tokens: int = 0,
        reset_mode: str = "fence",
        lookup_timeout_s: float = 1.0,
        identity: str = "unique",
    ) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def scope(self) -> Scope | None: ...
    @property
    def has_loads(self) -> bool: ...
    @property
    def adopt_is_due(self) -> bool: ...
    @property
    def writes_are_known(self) -> bool: ...
    def is_loading(self, request_id: str, /) -> bool: ...
    def match(
        self,
        request_id: str,
        hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
        /,
    ) -> int | None: ...
    def update_state_after_alloc(
        self,
        request_id: str,
        blocks: Sequence[int],
        num_computed_tokens: int,
        num_external_tokens: int,
        /,
    ) -> bool: ...
    def request_finished(self, request_id: str, /) -> None: ...
    def schedule(
        self,
        request_id: str,
        hashes: Sequence[bytes],
        blocks: Sequence[int],
        replace: bool,
        num_computed_tokens: int,
        num_scheduled_tokens: int,
        save: bool,
        /,
    ) -> None: ...
    def build_connector_meta(self, runs_on: bool = False) -> bytes: ...
    def update_connector_output(self, reports: Sequence[bytes], /) -> tuple[bool, list[str]]: ...
    def reset(self, *, keep_verified: bool = False, timeout_s: float = 5.0) -> ConnectorReset: ...
    def seal(self) -> None: ...
    def unseal(self) -> None: ...
    def weights_were_written(self) -> bool: ...
    def identify(self, ranks: Sequence[tuple[int, bytes]], /) -> None: ...
    def set_weight_version(self, weight_version: str, /) -> None: ...
    def fence_only(self) -> Literal["kept", "new", "sealed"]: ...

class ConnectorWorker:
    """One thread."""

    def __init__(
        self,
        *,
        store: str,
        store_bytes: int,
        store_timeout_s: float,
        load_timeout_s: float,
        layout: str,
        rank: int,
        rank_count: int,
        block_size: int,
        endpoint: str,
        engine_id: str,
        regions: Sequence[tuple[int, int, int]],
        block_count: int,
        staging_bytes: int,
        identity: str = "unique",
        checksum: bool = True,
    ) -> None: ...
    @property
    def weight_writes(self) -> int: ...
    @property
    def unfinished_saves(self) -> int: ...
    def bind(self, message: bytes, /) -> None: ...
    def start_load_kv(self) -> None: ...
    def wait_for_save(self) -> None: ...
    def take_finished(self) -> tuple[bytes | None, list[str], list[str], list[int]]: ...
    def note_weight_write(self, sealed_epoch: int = 0) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...
