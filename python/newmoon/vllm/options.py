"""kv_connector_extra_config: which keys there are, and what they may hold."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    # Where blocks go: "memory" (in each rank's process), "ipc://PATH" of `newmoon store-server` or
    # "mooncake://HOST:PORT".
    store: str = "memory"
    # Of "memory": bytes a rank may hold.
    store_bytes: int = 4 << 30
    # A call to a store in another process ends within it.
    store_timeout_s: float = 1.0
    # A load asks the store for nothing after it, its wait behind other loads included; what is
    # missing is computed. Enough for ten calls that just do not time out; a store that needs more
    # is in trouble, and computing is the better bet.
    load_timeout_s: float = 10.0
    # Part of every key: engines of other namespaces never meet.
    namespace: str = ""
    # What names the weights in a key: "unique" (nothing: every change starts cold), "digest" (of
    # the tensors in memory) or "trust_weight_version" (vLLM's weight_version, by your word).
    identity: str = "unique"
    # Host memory a rank copies blocks to before they are saved.
    staging_bytes: int = 256 << 20
    # Shorter external hits are computed.
    min_load_tokens: int = 0
    # A lookup that takes longer is a miss.
    lookup_timeout_s: float = 1.0
    # A reset answers within it.
    reset_timeout_s: float = 5.0
    # "fence", or "remove_all" to empty the whole store on top, others' keys included; that
    # needs exclusive_store.
    reset_mode: str = "fence"
    # Nobody else uses the store.
    exclusive_store: bool = False
    # Worker methods of your own, called through collective_rpc, that write no weights; every
    # other one is a fence.
    reading_rpcs: tuple[str, ...] = ()
    # Run with a vLLM that this version was not tested with.
    any_vllm_version: bool = False


CHOICES = {
    "identity": ("unique", "digest", "trust_weight_version"),
    "reset_mode": ("fence", "remove_all"),
}
MAX_SECONDS = 24 * 3600
MAX_TEXT_BYTES = {"namespace": 256, "store": 4096}  # a scope is listed in 1,024 bytes
MAX_BYTES = 1 << 50
MAX_TOKENS = (1 << 31) - 1


def parse_options(extra_config: Mapping[str, Any]) -> Options:
    """Raises ValueError, in one line, for an unknown key or a value that does not fit."""
    fields = {field.name: field for field in dataclasses.fields(Options)}
    values = {}
    for name, value in extra_config.items():
        if name not in fields:
            raise ValueError(
                f"newmoon: kv_connector_extra_config has no {shown(name)}; it has {', '.join(fields)}"
            )
        values[name] = of_type(name, value, type(fields[name].default))
        check_value(name, values[name])
    options = Options(**values)
    check_together(options)
    return options


def of_type(name: str, value: Any, wanted: type) -> Any:
    if wanted is float and type(value) is int and abs(value) <= MAX_SECONDS:
        return float(value)
    if wanted is tuple and isinstance(value, list) and all(type(v) is str for v in value):
        return tuple(value)
    if type(value) is not wanted:
        kind = {tuple: "list of names", float: "number of seconds"}.get(wanted, wanted.__name__)
        raise ValueError(f"newmoon: '{name}' takes a value of type {kind}, not {shown(value)}")
    return value


def check_value(name: str, value: Any) -> None:
    said = None
    if name in CHOICES and value not in CHOICES[name]:
        said = f"must be {', '.join(CHOICES[name][:-1])} or {CHOICES[name][-1]}"
    elif name in MAX_TEXT_BYTES and not is_text(value, MAX_TEXT_BYTES[name]):
        said = f"takes printable text of at most {MAX_TEXT_BYTES[name]} bytes"
    elif type(value) is float and not 0 < value <= MAX_SECONDS:  # NaN too
        said = f"takes more than 0 and at most {MAX_SECONDS} seconds"
    elif name.endswith("_bytes") and not 0 < value <= MAX_BYTES:
        said = f"takes 1 to {MAX_BYTES} bytes"
    elif name.endswith("_tokens") and not 0 <= value <= MAX_TOKENS:
        said = f"takes 0 to {MAX_TOKENS} tokens"
    if said is not None:
        raise ValueError(f"newmoon: '{name}' {said}, not {shown(value)}")


def is_text(value: Any, most_bytes: int) -> bool:
    """Printable, so in one line, and without halves of characters that UTF-8 has no bytes for."""
    return isinstance(value, str) and value.isprintable() and len(value.encode()) <= most_bytes


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def check_together(options: Options) -> None:
    if options.reset_mode == "remove_all" and not options.exclusive_store:
        raise ValueError(
            "newmoon: 'reset_mode' remove_all empties the whole store, whoever uses it; if nobody"
            " else does, set 'exclusive_store' to true"
        )
    if options.identity == "trust_weight_version" and not options.namespace:
        raise ValueError(
            "newmoon: 'identity' trust_weight_version needs a 'namespace' that holds the id of your"
            " run: another run's step-1 are other weights"
        )
