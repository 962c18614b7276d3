"""The package without vLLM, typed: KV of two versions of the weights in one store.

    pip install . && python examples/plain_api.py

Exit code 1 if KV of other weights was found, or that of the same ones was not.
"""

import sys

import newmoon

PROMPT = list(range(100))
KV = b"the KV of 16 tokens"


def save(store: newmoon.Store, scope: newmoon.Scope | None, hashes: list[bytes]) -> None:
    for block_hash in hashes:
        store.put(scope, block_hash, KV)


def load(store: newmoon.Store, scope: newmoon.Scope | None, hashes: list[bytes]) -> list[bytes]:
    """Of the leading blocks that are there."""
    found = []
    for block_hash in hashes[: store.lookup(scope, hashes)]:
        kv = bytearray(len(KV))
        if store.get(scope, block_hash, kv):
            found.append(bytes(kv))
    return found


def run(store: newmoon.Store) -> bool:
    hashes = newmoon.BlockHasher(block_size=16).hash_blocks(PROMPT)
    fence = newmoon.Fence(namespace="run-7", model="tiny", layout="block=16 dtype=bf16")
    fence.adopt(label="step-41")
    save(store, fence.scope, hashes)
    here = load(store, fence.scope, hashes)

    fence.seal()  # weights are about to be written: no scope
    try:
        store.lookup(fence.scope, hashes)
        refused = False
    except newmoon.Error as error:
        refused = error.code == "bad_request"
    fence.adopt(label="step-42")
    other = load(store, fence.scope, hashes)
    fence.adopt(label="step-41")
    back = load(store, fence.scope, hashes)

    outcome, left = fence.reset()
    print(f"{outcome} scope after a reset, {'one' if left else 'none'} left, {store.stats()}")
    for usage in store.scopes():
        print(f"{usage['blocks']} blocks of {usage['description']}")
    return refused and here == back == [KV] * len(hashes) and not other


def main() -> int:
    with newmoon.open_store("memory", budget_bytes=64 << 20) as store:
        return 0 if run(store) else 1


if __name__ == "__main__":
    sys.exit(main())
