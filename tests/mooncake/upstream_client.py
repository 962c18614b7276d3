"""Upstream's way with a Mooncake store: the wheel's own client, told what to do.

Usage: upstream_client.py WHEEL_FOLDER MASTER     (HOST:PORT)

A line of JSON in, a line out: {"call": name, ...} -> {"code": n} or {"codes": [n, ...]}.
Values are the bytes of their text. Ends with its standard input.
"""

import json
import os
import sys

os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
os.environ.setdefault("MC_STORE_CLIENT_SETUP_RETRIES", "1")
SEGMENT_BYTES = 16 << 20


def join(wheel_folder, master):
    sys.path.insert(0, wheel_folder)
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    code = store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT_BYTES, SEGMENT_BYTES, "tcp", "", master)
    return store, code


def run(store, request):
    call = request["call"]
    if call == "put":
        return {"code": store.put(request["key"], request["value"].encode())}
    if call == "get":
        return {"value": store.get(request["key"]).decode(errors="replace")}
    if call == "exist":  # as upstream's lookup asks
        return {"codes": store.batch_is_exist(request["keys"])}
    if call == "put_start":
        return {"codes": store.batch_put_session_start(request["keys"], [request["bytes"]] *
                                                       len(request["keys"]))}
    if call == "put_end":
        return {"codes": store.batch_put_session_end(request["keys"])}
    if call == "remove_all":  # as upstream's reset does
        return {"code": store.remove_all(True)}
    raise ValueError(call)


def main():
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the wheel prints is no reply
    store, code = join(*sys.argv[1:])
    print(json.dumps({"code": code}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(store, json.loads(line))), file=replies, flush=True)
    os._exit(0)  # leaving in good order takes seconds, and the master ends with the test


if __name__ == "__main__":
    main()
