"""NewmoonConnector next to vLLM's own MooncakeStoreConnector, in one run of real vLLM on CPU.

Columns: in-tree (vLLM's, on Mooncake), mooncake (ours, on Mooncake), memory (ours, in the rank's
process). Each has an engine, and those on Mooncake a master each, since the in-tree reset empties
the whole store. All engines of a model are alive at once and take turns; those whose turn it is
not do nothing. Figures are next to in-tree: "2.00x" is twice as good.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path.append(str(TESTS))

from compare import Flat, Row, print_table
from mooncake_master import MooncakeMaster

SECTION_NAMES = ("lookup", "step", "reset", "ttft", "save")
LIMIT_S = 1500  # a run that hangs ends here
STORE_BYTES = 3 << 30
BUFFER_BYTES = 128 << 20


# --- inside: the process whose children are the engines ---


async def measure(order: dict) -> None:
    from vllm_columns import COLUMNS, Column, Shape, prompt_of
    from vllm_sections import SECTIONS

    shapes = {
        "tiny": Shape(f"{order['models']}/tiny", block=32, kv_blocks=10_000),
        "real": Shape(order["real_model"], block=128, kv_blocks=40),
        "wide": Shape(f"{order['models']}/wide", block=128, kv_blocks=120),
    }
    results: dict[str, list] = {"rows": [], "flat": [], "failed": []}
    columns: dict[str, Column] = {}
    for kind, shape in shapes.items():
        wanted = [name for name in order["sections"] if SECTIONS[name][0] == kind]
        if not wanted:
            continue
        begin = time.monotonic()
        for column in columns.values():
            column.llm.shutdown()
        columns = {name: Column(name, order["url"], shape) for name in COLUMNS}
        for column in columns.values():
            await column.ask(prompt_of(1, 10))  # the first of all is slow
        say(f"engines of model {kind}", begin)
        for name in wanted:
            begin = time.monotonic()
            try:
                rows, flat = await SECTIONS[name][1](columns)
                results["rows"] += [vars(row) for row in rows]
                results["flat"] += [vars(one) for one in flat]
            except Exception:  # whatever vLLM raises: other sections may work
                traceback.print_exc()
                results["failed"].append(name)
            pathlib.Path(order["results"]).write_text(json.dumps(results))
            say(name, begin)
    say("end", time.monotonic())


def say(what: str, begin: float) -> None:
    print(f"bench-vllm: {what}: {time.monotonic() - begin:.0f} s", flush=True)


# --- outside ---


def run_inside(order: dict, environment: dict[str, str], log: pathlib.Path) -> bool:
    """False: it did not come to its end. Whatever it started ends with it."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, "--inside", json.dumps(order)],
            env=os.environ | environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    deadline = time.monotonic() + LIMIT_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if "bench-vllm: end" in log.read_text(errors="replace"):
                return True
            time.sleep(0.3)
        return process.poll() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group is ours
        process.wait(30)


def run(arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, list]:
    models = folder / "models"
    make = [sys.executable, str(HERE / "vllm_models.py"), str(models)]
    subprocess.run(make, check=True, capture_output=True)
    with MooncakeMaster(folder / "peer.log") as peer, MooncakeMaster(folder / "ours.log") as ours:
        config = folder / "mooncake.json"
        config.write_text(json.dumps({
            "metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{peer.port}",
            "protocol": "tcp", "global_segment_size": STORE_BYTES,
            "local_buffer_size": BUFFER_BYTES,
        }))  # fmt: skip
        order = {
            "sections": arguments.sections or SECTION_NAMES,
            "models": str(models),
            "real_model": os.environ["NEWMOON_TEST_MODEL"],
            "url": ours.url(
                global_segment_size=str(STORE_BYTES), local_buffer_size=str(BUFFER_BYTES)
            ),
            "results": str(folder / "results.json"),
        }
        paths = [str(HERE), str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {
            "MOONCAKE_CONFIG_PATH": str(config),
            "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1",
            "VLLM_RPC_BASE_PATH": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        ended = run_inside(order, environment, arguments.log)
    results: dict[str, list] = {"rows": [], "flat": [], "failed": []}
    with contextlib.suppress(FileNotFoundError):
        results = json.loads(pathlib.Path(order["results"]).read_text())
    if not ended:
        results["failed"].append("the rest")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTION_NAMES)}; all if none")
    parser.add_argument("--check", action="store_true", help="a missed target is exit code 1")
    parser.add_argument("--json", type=pathlib.Path, help="where the figures go, as JSON")
    parser.add_argument("--log", type=pathlib.Path, default="bench_vllm.log", help="of the engines")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        asyncio.run(measure(json.loads(arguments.inside)))
        return 0
    for name in arguments.sections:
        if name not in SECTION_NAMES:
            parser.error(f"no section '{name}'; there are {', '.join(SECTION_NAMES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with it
    with tempfile.TemporaryDirectory(prefix="nm") as folder:  # a socket's path has 107 bytes
        results = run(arguments, pathlib.Path(folder))
    rows = [Row(**row) for row in results["rows"]]
    flat = [Flat(**one) for one in results["flat"]]
    print_table(rows, flat)
    missed = [line for one in [*rows, *flat] for line in one.missed()]
    for line in missed:
        print(f"missed: {line}")
    if arguments.json:
        both = {
            "rows": [row.as_json() for row in rows],
            "flat": [one.as_json() for one in flat],
            "missed": missed,
        }
        arguments.json.write_text(json.dumps(both, indent=1) + "\n")
    if results["failed"]:
        failed = ", ".join(results["failed"])
        print(f"bench_vllm: no figures of {failed}; see {arguments.log}", file=sys.stderr)
        return 2
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
