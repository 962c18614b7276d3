"""External KV cache for LLM inference that never serves KV of old weights.

Blocks are put and found under a scope (namespace, model, layout, identity of the weights) and
a block hash (vLLM's). A Fence says which scope is right now; see the README for an example.
For vLLM: newmoon.vllm.
"""

from newmoon._core import (
    BlockHasher,
    Error,
    Fence,
    LookupKeyClient,
    Scope,
    Store,
    open_store,
    set_log_level,
)

__all__ = [
    "BlockHasher",
    "Error",
    "Fence",
    "LookupKeyClient",
    "Scope",
    "Store",
    "open_store",
    "set_log_level",
]
__version__ = "0.1.0"
