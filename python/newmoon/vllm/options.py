"""kv_connector_extra_config: which keys there are, and what they may hold."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Options:
    # Where blocks go: "memory" (in each rank's process) or "ipc://PATH" of
    # `newmoon store-server`.
    store: str = "memory"
    # Of "memory": bytes a rank may hold.
    store_bytes: int = 4 << 30
    # A call to a store in another process ends within it.
    store_timeout_s: float = 1.0
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


def parse_options(extra_config: Mapping[str, Any]) -> Options:
    """Raises ValueError, in one line, for an unknown key or a value that does not fit."""
    fields = {field.name: field for field in dataclasses.fields(Options)}
    values = {}
    for name, value in extra_config.items():
        if name not in fields:
            raise ValueError(
                f"newmoon: kv_connector_extra_config has no '{name}'; it has {', '.join(fields)}"
            )
        wanted = type(fields[name].default)
        if wanted is float and type(value) is int:
            value = float(value)
        if wanted is tuple and isinstance(value, list) and all(type(v) is str for v in value):
            value = tuple(value)
        if type(value) is not wanted:
            kind = "list of names" if wanted is tuple else wanted.__name__
            raise ValueError(f"newmoon: '{name}' takes a value of type {kind}, not {value!r}")
        if wanted in (int, float) and value < 0:
            raise ValueError(f"newmoon: '{name}' must not be negative, as {value!r} is")
        values[name] = value
    options = Options(**values)
    if options.reset_mode == "remove_all" and not options.exclusive_store:
        raise ValueError(
            "newmoon: 'reset_mode' remove_all empties the whole store, whoever uses it; if nobody"
            " else does, set 'exclusive_store' to true"
        )
    if options.identity not in ("unique", "digest", "trust_weight_version"):
        raise ValueError(
            "newmoon: 'identity' is unique, digest or trust_weight_version, not"
            f" {options.identity!r}"
        )
    if options.identity == "trust_weight_version" and not options.namespace:
        raise ValueError(
            "newmoon: 'identity' trust_weight_version needs a 'namespace' that holds the id of your"
            " run: another run's step-1 are other weights"
        )
    return options
