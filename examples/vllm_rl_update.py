#!/usr/bin/env python3
"""One table: what weight updates of RL frameworks do to an external KV cache of real vLLM.

    ./dev vllm-example                    # or, in an environment with vLLM, Mooncake and newmoon:
    python examples/vllm_rl_update.py     # [--json] [--quick] [--store memory] [--keep-logs DIR]

Columns, over the same flows (rl_flows.py), but for four that only newmoon has, since in-tree each
would hang or end an engine of its own:
  in-tree       vLLM's own MooncakeStoreConnector, as the frameworks call it
  in-tree+salt  the same, with a cache_salt per version of the weights in every request
  newmoon       NewmoonConnector, on the same kind of store (--store memory: on its own)
Each column has a process and a Mooncake master of its own, on free ports of 127.0.0.1; what hangs
is given up after --hang-seconds and said to hang. Nothing is left running. Exit code 1 if a cell of
newmoon's column is not as it should be (stderr says which), or a column did not come to its end.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python" / "tests")]

import rl_engine
import rl_flows
from mooncake_master import MooncakeMaster
from rl_engine import FOUND, TOLERANCE, Engine, Observation, prompt_of
from rl_flows import FLOWS, Flow

COLUMNS = ("in-tree", "in-tree+salt", "newmoon")
# What no connector can see is no question to one; docs/guarantees.md has it.
SHOWN = [flow for flow in FLOWS if set(flow.not_guaranteed) <= {"running"}]
# Requests are kept and recomputed. These come last: behind one that hangs, or that ends the
# engine, another process goes on. In-tree one of each kind.
KEPT = [flow for flow in SHOWN if flow.running == "recomputed"]
KEPT_IN_TREE = [
    flow
    for flow in KEPT
    if flow.name in ("OpenRLHF: async, partial rollout", "SkyRL: non-colocated")
]
QUICK = [flow for flow in SHOWN if flow.name in ("OpenRLHF: sync", "SkyRL: fully async")]
# Back to earlier weights as one framework does it that resets the connector, and one that does not.
GOING_BACK = [
    flow for flow in SHOWN if flow.name in ("verl: naive (IPC, delta)", "SkyRL: fully async")
]
PROCESS_TIMEOUT_S = 900
FLOW_TIMEOUT_S = 60
TIMED = 7


def tell(**what: Any) -> None:
    print("TOLD " + json.dumps(what), flush=True)


# --- a column: one engine, in a process of its own ---


def transfer_config(column: str, store: str) -> dict[str, Any]:
    if column.startswith("in-tree"):
        return {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    return {
        "kv_connector": "NewmoonConnector",
        "kv_connector_module_path": "newmoon.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "store": store,
            "store_bytes": 1 << 30,
            # The in-tree connector waits as long as it takes.
            "lookup_timeout_s": 5.0,
            "store_timeout_s": 5.0,
            "identity": "digest",
            "reading_rpcs": rl_engine.READING_RPCS,
        },
    }


async def bounded(what: Awaitable[Any], limit_s: float) -> tuple[float, Any]:
    """Milliseconds it took and its result; TimeoutError leaves it running, as it would be."""
    task = asyncio.ensure_future(what)
    begin = time.monotonic()
    done, _ = await asyncio.wait([task], timeout=limit_s)
    if not done:
        raise TimeoutError
    return (time.monotonic() - begin) * 1000, task.result()


async def outcome(what: Awaitable[Any], limit_s: float) -> str:
    try:
        took_ms, result = await bounded(what, limit_s)
    except TimeoutError:
        return f"hangs (> {limit_s:.0f} s)"
    except Exception as error:  # vLLM's, whatever they are: an answer all the same
        return f"fails ({type(error).__name__})"
    said = "works" if isinstance(result, Observation) else f"answers {result}"
    return f"{said} in {took_ms / 1000:.1f} s" if took_ms > 500 else said


def tell_seen(flow: Flow, part: str, seen: dict[str, Observation]) -> None:
    for name, one in seen.items():
        if name not in flow.not_guaranteed:
            tell(seen=part, flow=flow.name, name=name, one=dataclasses.asdict(one))


async def run_flows(engine: Engine, flows: list[Flow]) -> None:
    for flow in flows:
        tell(begins=flow.name)
        seen = rl_flows.run_flow(engine, flow, FLOWS.index(flow))
        try:
            tell_seen(flow, "flow", (await bounded(seen, FLOW_TIMEOUT_S))[1])
        except Exception as error:  # a TimeoutError, or what vLLM raises
            tell(flow=flow.name, fails="hangs" if isinstance(error, TimeoutError) else repr(error))
            leave(1)


def leave(code: int) -> None:
    """At once: asyncio would wait for what hangs."""
    sys.stdout.flush()
    os._exit(code)


async def go_back(engine: Engine, flow: Flow, number: int) -> None:
    """From weights to others and back to the same, with the framework's own calls. "back": a prompt
    of before. "crossed": a prompt that consists of a request that ran when the weights left, with
    its answer."""
    seed, weights = 10_000 + 100 * number, rl_flows.next_weights(engine, flow)
    await flow.update(engine, weights)
    await engine.ask(prompt_of(seed))
    await engine.wait_for_saves()
    running = engine.run_in_background(prompt_of(seed + 1)) if flow.running else None
    if running:
        await running.at_least(4)
    await flow.update(engine, rl_flows.next_weights(engine, flow))
    await engine.end_running()
    await engine.push_out(seed + 50)
    await flow.update(engine, weights)
    seen = {"back": await engine.ask(prompt_of(seed))}
    if running:
        longer = running.prompt + running.tokens[: 2 * rl_engine.BLOCK]
        seen["crossed"] = await engine.ask(longer)
    tell_seen(flow, "back", seen)


async def time_resets(engine: Engine) -> None:
    async def reset() -> bool:
        return await engine.llm.reset_prefix_cache(reset_connector=True)

    async def pause(mode: str) -> bool:
        await engine.llm.pause_generation(mode=mode)
        return True

    for row, call in (
        ("reset", reset),
        ("pause (abort)", lambda: pause("abort")),
        ("pause (keep)", lambda: pause("keep")),
    ):
        took_ms, failed = [], 0
        for seed in range(TIMED):
            await engine.ask(prompt_of(20_000 + seed), max_tokens=1)
            try:
                took, answer = await bounded(call(), 30)
            except Exception:  # what vLLM raises if a pause cannot clear
                took, answer = 0.0, False
            took_ms.append(took)
            failed += not answer
            await engine.llm.resume_generation()
            await engine.wait_for_saves()
        tell(row=f"{row}, ms", value=f"{statistics.median(took_ms):.1f}")
        tell(row=f"{row} right behind a request: failed", value=f"{failed} of {TIMED}")


async def stop_worker(engine: Engine, limit_s: float) -> None:
    process = await engine.rpc("process_id")
    os.kill(process, signal.SIGSTOP)
    await asyncio.sleep(0.3)  # until all its threads stand still
    try:
        reset = asyncio.ensure_future(engine.llm.reset_prefix_cache(reset_connector=True))
        said = await outcome(asyncio.shield(reset), limit_s)
    finally:
        os.kill(process, signal.SIGCONT)
    tell(row="stopped worker: reset", value=said)
    await bounded(reset, 60)


def admin_socket(folder: str) -> str:
    (path,) = [
        path
        for path in pathlib.Path(folder).rglob("*")
        if path.is_socket() and (path.name.startswith("lookup_rpc") or "rank0" in path.name)
    ]
    return f"ipc://{path}"


async def send_bad_frame(engine: Engine, folder: str, limit_s: float) -> None:
    import zmq
    import zmq.asyncio

    await engine.ask(prompt_of(29_000))  # it works before
    socket = zmq.asyncio.Context.instance().socket(zmq.REQ)
    socket.linger = 0
    socket.connect(admin_socket(folder))
    await socket.send(b"lookup")  # and none of the frames that should follow
    answered = await socket.poll(2000)
    said = "is answered an error" if answered else "is not answered"
    tell(row="bad frame: its sender", value=said)
    said = await outcome(engine.ask(prompt_of(30_000)), limit_s)
    tell(row="bad frame: next request", value=said)
    reset = engine.llm.reset_prefix_cache(reset_connector=True)
    tell(row="bad frame: next reset", value=await outcome(reset, limit_s))
    socket.close()


async def column_main(arguments: argparse.Namespace) -> None:
    column = arguments.column
    engine = Engine(arguments.model, transfer_config(column, arguments.store))
    engine.always_salted = column.endswith("+salt")
    flows = QUICK if arguments.quick else SHOWN
    kept = KEPT_IN_TREE if column.startswith("in-tree") else KEPT
    done = set(filter(None, arguments.done.split(";")))
    if not done:
        await run_flows(engine, [flow for flow in flows if flow not in KEPT])
        for number, flow in enumerate(GOING_BACK):
            await go_back(engine, flow, number)
        await time_resets(engine)
        await stop_worker(engine, arguments.hang_seconds)
    await run_flows(engine, [flow for flow in flows if flow in kept and flow.name not in done])
    await send_bad_frame(engine, arguments.folder, arguments.hang_seconds)
    tell(row="end", value="")
    leave(0)


async def compare_main(arguments: argparse.Namespace) -> None:
    """Reads what columns saw; tells by how much each answer differs from a fresh one."""
    lines = pathlib.Path(arguments.folder, "seen.jsonl").read_text().splitlines()
    seen = [json.loads(line) for line in lines]
    observations = [Observation(**told["one"]) for told in seen]
    differences = await rl_flows.expect_all(arguments.model, observations)
    for told, difference in zip(seen, differences, strict=True):
        tell(**told, difference=difference)


# --- all of them ---


class Run:
    """One process of this script, and what it told; ended with all it started."""

    def __init__(
        self, arguments: argparse.Namespace, log: pathlib.Path, environment: dict[str, str]
    ):
        command = [sys.executable, __file__, *["--quick"] * arguments.quick]
        for name in ("model", "done", "folder", "column", "store", "hang_seconds"):
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
        environment = environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        lines = self._follow(process, log)
        self.told = [json.loads(line.removeprefix("TOLD ")) for line in lines]

    def _follow(self, process: subprocess.Popen, log: pathlib.Path) -> list[str]:
        """A process that hangs at its end has told all it could."""
        deadline = time.monotonic() + PROCESS_TIMEOUT_S
        try:
            while process.poll() is None and time.monotonic() < deadline:
                if '"row": "end"' in log.read_text():
                    break
                time.sleep(0.2)
        finally:
            end_group(process)
        return [line for line in log.read_text().splitlines() if line.startswith("TOLD ")]


def end_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # the group is ours: process_group
    except ProcessLookupError:
        pass
    process.wait(30)


def run_column(arguments: argparse.Namespace, column: str, folder: pathlib.Path) -> list[dict]:
    """Behind a flow that fails another process goes on."""
    told: list[dict] = []
    while True:
        done = [one["begins"] for one in told if "begins" in one]
        new = run_process(arguments, column, done, folder / f"{column}-{len(done)}")
        told += new
        if not any("fails" in one for one in new):
            return told


def run_process(
    arguments: argparse.Namespace, column: str, done: list[str], folder: pathlib.Path
) -> list[dict]:
    folder.mkdir()  # its sockets, and nobody else's
    store = arguments.store
    with MooncakeMaster(folder / "master.log") as master:
        if store == "mooncake":
            store = master.url(global_segment_size="512MB", local_buffer_size="64MB")
        config = folder / "mooncake.json"
        config.write_text(json.dumps({
            "metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{master.port}",
            "protocol": "tcp", "global_segment_size": 512 << 20, "local_buffer_size": 64 << 20,
        }))  # fmt: skip
        environment = {
            "MOONCAKE_CONFIG_PATH": str(config),
            "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1",
            "MC_LOG_LEVEL": "ERROR",
            "VLLM_RPC_BASE_PATH": str(folder),
        }
        asked = vars(arguments) | {
            "column": column, "folder": str(folder), "store": store, "done": ";".join(done)
        }  # fmt: skip
        return Run(argparse.Namespace(**asked), folder / "log", environment).told


def compare(
    arguments: argparse.Namespace, told: dict[str, list[dict]], folder: pathlib.Path
) -> list[dict]:
    seen = [one | {"column": column} for column in told for one in told[column] if "seen" in one]
    (folder / "seen.jsonl").write_text("".join(json.dumps(one) + "\n" for one in seen))
    asked = argparse.Namespace(**vars(arguments) | {"column": "compare", "folder": str(folder)})
    compared = Run(asked, folder / "compare.log", {"VLLM_RPC_BASE_PATH": str(folder)}).told
    if len(compared) != len(seen):
        raise SystemExit(
            "vllm_rl_update: the comparison ended early; --keep-logs keeps its compare.log"
        )
    return compared


def rows_of(compared: list[dict], told: list[dict]) -> dict[str, str]:
    """One column."""
    def stale(ones: list[dict]) -> str:
        return f"{sum(one['difference'] > TOLERANCE for one in ones)} of {len(ones)}"

    rows = {}
    flows = [one for one in compared if one["seen"] == "flow"]
    for framework in dict.fromkeys(flow.framework for flow in SHOWN):
        mine = [one for one in flows if one["flow"].startswith(framework + ":")]
        if mine:
            rows[f"stale answers, {framework}"] = stale(mine)
    for framework in dict.fromkeys(flow.framework for flow in KEPT):
        names = [flow.name for flow in KEPT if flow.framework == framework]
        fails = [one["fails"] for one in told if "fails" in one and one["flow"] in names]
        if fails or any(one["flow"] in names for one in flows):
            rows[f"kept requests, {framework}"] = (fails + ["go on"])[0].split("(")[0]
    again = [one for one in flows if one["name"] == "again"]
    rows["found again after the update"] = found(again)
    for flow in GOING_BACK:
        back = [one for one in compared if one["seen"] == "back" and one["flow"] == flow.name]
        prompts = [one for one in back if one["name"] == "back"]
        rows[f"found after going back, {flow.framework}"] = found(prompts)
        rows[f"stale after going back, {flow.framework}"] = stale(back)
    return rows | {one["row"]: one["value"] for one in told if one.get("row") not in (None, "end")}


def found(ones: list[dict]) -> str:
    right = [one for one in ones if one["difference"] <= TOLERANCE]
    return f"{sum(one['one']['external'] == FOUND for one in right)} of {len(ones)}"


# By the beginning of a row's name: the beginning of newmoon's cell, or of "n of m" the right n.
WANTED: dict[str, str | Callable[[int], int]] = {
    "stale answers": lambda of: 0,
    "kept requests": "go on",
    "found again after the update": lambda of: of,
    "found after going back": lambda of: of,
    "stale after going back": lambda of: 0,
    "reset right behind a request": lambda of: 0,
    "pause (abort) right behind a request": lambda of: 0,
    "pause (keep) right behind a request": lambda of: 0,
    "stopped worker: reset": "answers True",
    "bad frame: its sender": "is answered an error",
    "bad frame: next request": "works",
    "bad frame: next reset": "answers True",
}


def wrong_cells(rows: dict[str, str], quick: bool) -> list[str]:
    """Of newmoon's column; a row that is not there is wrong as well."""
    wrong = []
    for begin, wanted in WANTED.items():
        cells = [(name, cell) for name, cell in rows.items() if name.startswith(begin)]
        if not cells and not (quick and begin == "kept requests"):  # none of the quick flows has any
            wrong.append(f"'{begin}': not seen")
        wrong += [f"'{name}': {cell}" for name, cell in cells if not is_right(cell, wanted)]
    return wrong


def is_right(cell: str, wanted: str | Callable[[int], int]) -> bool:
    if isinstance(wanted, str):
        return cell.startswith(wanted)
    count, of = map(int, cell.split(" of "))
    return of > 0 and count == wanted(of)


def print_table(table: dict[str, dict[str, str]]) -> None:
    names = list(dict.fromkeys(name for rows in table.values() for name in rows))
    print("| | " + " | ".join(table) + " |\n|---" + "|---" * len(table) + "|")
    for name in names:
        print(f"| {name} | " + " | ".join(rows.get(name, "-") for rows in table.values()) + " |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")
    parser.add_argument("--quick", action="store_true", help="two flows instead of all")
    parser.add_argument("--store", default="mooncake", choices=["mooncake", "memory"], help="newmoon's")
    parser.add_argument("--hang-seconds", type=float, default=10.0)
    parser.add_argument("--keep-logs", metavar="DIR", help="a new folder for logs")
    for name in ("column", "folder", "model", "done"):  # of this script's own processes
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.column:
        asyncio.run((compare_main if arguments.column == "compare" else column_main)(arguments))
        return 0
    if arguments.keep_logs and pathlib.Path(arguments.keep_logs).exists():
        parser.error(f"--keep-logs {arguments.keep_logs}: it is there already; name a new folder")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with it
    with tempfile.TemporaryDirectory(prefix="nm") as temporary:  # a socket's path has 107 bytes
        folder = pathlib.Path(temporary)
        arguments.model = str(folder / "model")
        making = "import rl_engine, sys; rl_engine.make_model(sys.argv[1])"  # this one needs no torch
        subprocess.run([sys.executable, "-c", making, arguments.model], cwd=HERE, check=True)
        told = {column: run_column(arguments, column, folder) for column in COLUMNS}
        compared = compare(arguments, told, folder)
        table = {
            column: rows_of([one for one in compared if one["column"] == column], told[column])
            for column in COLUMNS
        }
        if arguments.keep_logs:
            logs = shutil.ignore_patterns("*.sock", "lookup_rpc*", "*-*-*-*-*")  # no sockets
            shutil.copytree(temporary, arguments.keep_logs, ignore=logs)
    if arguments.json:
        print(json.dumps(table))
    else:
        print_table(table)
    ended = [column for column in COLUMNS if {"row": "end", "value": ""} not in told[column]]
    if ended:
        print(
            f"vllm_rl_update: did not come to its end: {', '.join(ended)}; --keep-logs keeps the logs",
            file=sys.stderr,
        )
    wrong = wrong_cells(table["newmoon"], arguments.quick)
    for line in wrong:
        print(f"vllm_rl_update: newmoon is wrong in {line}", file=sys.stderr)
    ours = [one for one in compared if one["column"] == "newmoon"]
    stale = sorted({one["flow"] for one in ours if one["difference"] > TOLERANCE})
    if stale:
        print(f"vllm_rl_update: newmoon is stale in {'; '.join(stale)}", file=sys.stderr)
    return 1 if ended or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
