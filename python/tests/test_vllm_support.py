"""What the connector refuses at the start, and how it says so; no engine runs."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

pytest.importorskip("vllm")

import torch
import vllm
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

import newmoon
from newmoon._core import ConnectorWorker
from newmoon.vllm import scheduler
from newmoon.vllm.awaited import Awaited
from newmoon.vllm.metrics import RANK_COUNTERS, RESET_SECONDS, SCHEDULER_COUNTERS
from newmoon.vllm.options import Options, parse_options
from newmoon.vllm.rank_weights import check_reading_rpcs
from newmoon.vllm.request_params import DEFAULT, RequestParams, parse_request_params
from newmoon.vllm.scheduler import NO_WEIGHT_VERSION, SchedulerSide
from newmoon.vllm.support import (
    Setup,
    check_role,
    check_store,
    check_version,
    endpoint,
    refusal,
)
from newmoon.vllm.worker import WorkerSide, regions_of
from processes import HERE, binary, running


def spec(kind=FullAttentionSpec, **more):
    return kind(block_size=128, num_kv_heads=3, head_size=64, dtype=torch.bfloat16, **more)


def configs(specs, speculative=None, multimodal=None, **parallel):
    sizes = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "nnodes": 1,
    }
    return (
        types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(**(sizes | parallel)),
            speculative_config=speculative,
            model_config=types.SimpleNamespace(multimodal_config=multimodal),
        ),
        types.SimpleNamespace(
            kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=s) for s in specs],
            hash_block_size=128,
        ),
    )


def text_only(is_so):
    return types.SimpleNamespace(language_model_only=is_so)


def test_one_group_of_full_attention_is_supported():
    assert refusal(*configs([spec()])) is None
    assert refusal(*configs([spec()], multimodal=text_only(True))) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (configs([spec(), spec()]), "2 KV cache groups"),
        (configs([spec(SlidingWindowSpec, sliding_window=64)]), "SlidingWindowSpec"),
        (configs([spec()], pipeline_parallel_size=2), "pipeline parallelism"),
        (configs([spec()], nnodes=2), "several nodes"),
        (configs([spec()], speculative=object()), "speculative decoding"),
        (configs([spec()], multimodal=text_only(False)), "multimodal input"),
    ],
)
def test_the_rest_is_refused_in_one_line(arguments, said):
    reason = refusal(*arguments)
    assert said in reason and "\n" not in reason


def layouts(model, *asked):
    run = subprocess.run(
        [sys.executable, HERE / "layouts.py", model, json.dumps(asked)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(run.stdout.splitlines()[-1])


def test_kv_of_other_numbers_has_another_layout(test_model):
    """What neither the model's own configuration nor the size and torch's type of a block tell."""
    told = layouts(
        test_model,
        {},
        {"max_model_len": 512},  # LongRoPE turns positions by it
        {"kv_cache_dtype": "fp8_e4m3"},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"kv_cache_dtype": "fp8_e4m3", "kv_cache_dtype_skip_layers": ["0"]},
        {"override_generation_config": {"attn_temperature_tuning": True}},
        {"has_amx": True},  # whose kernels order a block's bytes in their way
    )
    assert len(set(told)) == len(told) == 7


def test_what_changes_no_number_keeps_the_layout(test_model):
    same = {"gpu_memory_utilization": 0.3, "seed": 7, "max_num_seqs": 9, "enforce_eager": True}
    one, other = layouts(test_model, {}, same | {"served_model_name": "other"})
    assert one == other


def test_a_method_that_may_write_weights_is_none_that_reads():
    check_reading_rpcs(("my_norms", "report"))
    for name in ("load_model", "sleep", "apply_model", "update_weights", "add_lora", "", "a b", "x\n"):
        with pytest.raises(ValueError, match="^newmoon: 'reading_rpcs'") as raised:
            check_reading_rpcs(("report", name))
        assert repr(name) in str(raised.value)


def test_another_vllm_is_refused_unless_asked_for(monkeypatch):
    check_version(any_version=False)
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    with pytest.raises(RuntimeError, match=r"0\.32 and this is 0\.33\.0.*any_vllm_version"):
        check_version(any_version=False)
    check_version(any_version=True)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sture": "memory"}, "no 'sture'"),
        ({"s" * 4000: "memory"}, r"no 's{99}\.\.\."),
        ({"store_bytes": "4GB"}, "'store_bytes' takes a value of type int"),
        ({"store_bytes": True}, "'store_bytes' takes a value of type int"),
        ({"store_bytes": 0}, "'store_bytes' takes 1 to"),
        ({"staging_bytes": 2**70}, "'staging_bytes' takes 1 to"),
        ({"min_load_tokens": -1}, "'min_load_tokens' takes 0 to"),
        ({"min_load_tokens": 2**40}, "'min_load_tokens' takes 0 to"),
        ({"store_timeout_s": -1}, "more than 0"),
        ({"load_timeout_s": 0}, "'load_timeout_s' takes more than 0"),
        ({"load_timeout_s": "10"}, "'load_timeout_s' takes a value of type number of seconds"),
        ({"reset_timeout_s": 0}, "more than 0"),
        ({"lookup_timeout_s": float("nan")}, "more than 0"),
        ({"lookup_timeout_s": float("inf")}, "more than 0"),
        ({"store_timeout_s": 10**400}, "number of seconds"),
        ({"namespace": "run\n7"}, "'namespace' takes printable text"),
        ({"namespace": "\udcff"}, "'namespace' takes printable text"),
        ({"namespace": "x" * 257}, "at most 256 bytes"),
        ({"store": "ipc:///a\nb"}, "'store' takes printable text"),
        ({"reset_mode": "fences"}, "'reset_mode' must be fence or remove_all"),
        ({"reading_rpcs": "name"}, "list of names"),
        ({"identity": "label"}, "'identity' must be unique, digest or trust_weight_version, not 'label'"),
        ({"identity": "trust_weight_version"}, "needs a 'namespace'"),
    ],
)
def test_bad_options_are_named(config, said):
    with pytest.raises(ValueError, match=said) as raised:
        parse_options(config)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


def test_removing_all_asks_for_a_store_of_its_own():
    with pytest.raises(ValueError, match="exclusive_store"):
        parse_options({"reset_mode": "remove_all"})
    alone = {"reset_mode": "remove_all", "exclusive_store": True}
    assert parse_options(alone).reset_mode == "remove_all"


def test_the_page_names_all_that_can_be_set_and_counted():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/vllm.md").read_text()
    options = {field.name for field in dataclasses.fields(Options)}
    assert set(re.findall(r"^\| `(\w+)` \|", page.split("## How to see")[0], re.MULTILINE)) == options
    for name in (*RANK_COUNTERS, *SCHEDULER_COUNTERS, RESET_SECONDS):
        assert re.search(rf"`(vllm:newmoon_)?{name}(_total)?`", page), name
    for field in dataclasses.fields(RequestParams):
        value = "false" if field.type is bool else '"'
        assert f'"{field.name}": {value}' in page


def test_a_role_that_only_saves_or_loads_is_refused():
    check_role("kv_both")
    with pytest.raises(ValueError, match="'kv_role' must be \"kv_both\", and \"kv_producer\" was") as raised:
        check_role("kv_producer")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memry", "memory, ipc://PATH or mooncake://HOST:PORT"),
        ("redis://127.0.0.1", "'redis://127.0.0.1' is unknown"),
        ("", "'' is unknown"),
        ("ipc://", "names no socket"),
        ("ipc:///newmoon-missing/store.sock", "/newmoon-missing: No such file or directory"),
        ("ipc:///etc/passwd", "no socket"),
        ("ipc:///etc/passwd/store.sock", "/etc/passwd"),
        ("mooncake://127.0.0.1", "HOST:PORT"),
        ("mooncake://127.0.0.1:1?lease=1", "lease"),
    ],
)
def test_a_url_at_which_no_store_can_be_is_refused(url, said):
    with pytest.raises(ValueError, match="^newmoon: 'store' in kv_connector_extra_config: ") as raised:
        check_store(parse_options({"store": url}))
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert "bad_request" not in str(raised.value)


@pytest.fixture
def warnings(monkeypatch):
    told = []
    monkeypatch.setattr(scheduler.logger, "warning", lambda text, *args: told.append(text % args))
    return told


def scheduler_side(store):
    setup = Setup(
        model="m", layout="l", block_size=16, block_count=4, rank_count=1,
        endpoints=["ipc:///nowhere/rank0.sock"], engine_id="engine",
    )  # fmt: skip
    return SchedulerSide(setup, parse_options({"store": store}))


def test_a_store_that_is_away_is_told_by_the_scheduler_once(tmp_path, warnings):
    url = f"ipc://{tmp_path}/store.sock"
    check_store(parse_options({"store": url}))
    scheduler_side(url)
    (line,) = warnings
    assert line.startswith("newmoon: ") and url in line and "served without it" in line


def test_a_store_that_is_there_is_nothing_to_tell(tmp_path, warnings):
    url = f"ipc://{tmp_path}/s/store.sock"
    with running(binary(), "store-server", "--endpoint", url):
        scheduler_side(url)
    scheduler_side("memory")
    assert warnings == []


def test_the_name_is_known_without_the_entry_point():
    """To MultiConnector, which looks its children up by name for their statistics."""
    code = """
import newmoon.vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
found = KVConnectorFactory.get_connector_class_by_name("NewmoonConnector")
assert found is newmoon.vllm.NewmoonConnector
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_store_that_is_away_is_told_by_a_rank_once(tmp_path):
    url = f"ipc://{tmp_path}/store.sock"
    code = """
import ctypes, sys, time
from newmoon._core import ConnectorWorker
kv = (ctypes.c_char * 4096)()
worker = ConnectorWorker(
    store=sys.argv[1], store_bytes=1, store_timeout_s=1.0, load_timeout_s=1.0, layout="l", rank=0,
    rank_count=1, block_size=16, endpoint=sys.argv[2], engine_id="e",
    regions=[(ctypes.addressof(kv), 1024, 1024)], block_count=4, staging_bytes=4096)
time.sleep(3)  # some pings
worker.close()
"""
    command = [sys.executable, "-c", code, url, f"ipc://{tmp_path}/s/rank0.sock"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("newmoon: warning store: ") and f"no store server at {url}" in line


@pytest.mark.parametrize("params", [[1], "newmoon", 5])
def test_nonsense_in_a_request_is_left_out(params):
    assert parse_request_params(params) == DEFAULT


def sealable():
    """What a seal of SchedulerSide needs, and no more."""
    core = types.SimpleNamespace(
        epoch=1,
        seal=lambda: None,
        set_weight_version=lambda label: None,
        weights_were_written=lambda: False,
    )
    side = object.__new__(SchedulerSide)
    side._core, side._engine, side._local_cache, side.awaited = core, None, None, Awaited()
    return side


def test_a_seal_leaves_weights_that_nobody_has_named():
    side = sealable()
    SchedulerSide.set_weight_version(side, "step-1")
    side.seal()
    assert side._weight_version is None
    side.set_weight_version("step-1")
    assert side._weight_version == "step-1", "an update may end at the weights that were there"
    side._core.update_connector_output = lambda reports: (True, [])
    side.update_connector_output(types.SimpleNamespace(kv_connector_worker_meta=None))
    assert side._weight_version is None, "a rank wrote weights on its own"


def test_a_version_told_behind_a_write_past_the_engine_is_of_what_was_written():
    side = sealable()
    forgotten = []
    side._local_cache = types.SimpleNamespace(forget=lambda: forgotten.append(True))
    side._core.weights_were_written = lambda: True
    side.set_weight_version("step-1")
    assert forgotten and side._weight_version == "step-1"


@pytest.mark.parametrize("version", [5, None, "\udcff", "a\nb", "x" * 257])
def test_a_weight_version_that_is_no_label_names_nothing(version):
    told = []
    side = sealable()
    side._core.set_weight_version = told.append
    side.set_weight_version(version)
    assert side._weight_version is None
    side.set_weight_version("step-ü")
    assert side._weight_version == "step-ü"
    assert told == [NO_WEIGHT_VERSION, "step-ü"]
    side.awaited.rpc_failed("start_weight_update")
    side.set_weight_version("step-2")
    assert told == [NO_WEIGHT_VERSION, "step-ü"], "an update has failed: nobody knows which these are"


def test_options_have_defaults():
    assert parse_options({}).store == "memory"
    assert parse_options({"store_timeout_s": 2}).store_timeout_s == 2.0
    assert parse_options({}).load_timeout_s > parse_options({}).store_timeout_s
    assert parse_options({"reading_rpcs": ["a", "b"]}).reading_rpcs == ("a", "b")


def test_sockets_are_per_engine_and_rank(monkeypatch):
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/somewhere")
    one, two = endpoint("engine", 0), endpoint("engine", 1)
    assert one != two and one.startswith("ipc:///somewhere/newmoon-")


@pytest.mark.parametrize(
    ("staging_bytes", "said"),
    [
        (1 << 49, "staging_bytes 562949953421312: this machine gives no such memory"),
        (1023, "staging_bytes 1023 holds no block; it takes 1024 at least"),
    ],
)
def test_staging_that_the_machine_or_a_block_does_not_fit_is_named(staging_bytes, said):
    with pytest.raises(newmoon.Error, match=said):
        ConnectorWorker(
            store="memory",
            store_bytes=1 << 20,
            store_timeout_s=1.0,
            load_timeout_s=10.0,
            layout="l",
            rank=0,
            rank_count=1,
            block_size=16,
            endpoint="ipc:///nowhere/rank0.sock",
            engine_id="engine",
            regions=[(4096, 1024, 1024)],  # never read: no block is staged
            block_count=1,
            staging_bytes=staging_bytes,
            identity="unique",
        )


def test_a_second_engine_in_the_process_is_refused():
    """vLLM hands its tensors to the connector of the first."""
    worker = WorkerSide(setup=None, options=None, rank=0)
    worker._core = object()
    with pytest.raises(RuntimeError, match="a process of its own"):
        worker.register_kv_caches({})


def test_regions_are_the_bytes_of_each_block():
    storage = torch.arange(2 * 4 * 6, dtype=torch.int16)
    first, second = storage.view(2, 4, 6)
    base = storage.data_ptr()
    assert regions_of({"a": first, "b": second, "shared": first}, 4) == [
        (base, 12, 12),
        (base + 48, 12, 12),
    ]
    with pytest.raises(ValueError, match="KV layout of a"):
        regions_of({"a": first.t()}, 4)
    with pytest.raises(ValueError, match="device 'meta'"):
        regions_of({"a": torch.empty(4, 6, device="meta")}, 4)


def test_the_next_vllm_has_all_that_is_imported_and_wrapped():
    """Its Python part alone: nothing of it can run here."""
    code = """
import vllm, newmoon.vllm
from newmoon.vllm.weights import watch_engine_core
assert vllm.__version__.startswith("0.33."), vllm.__version__
assert not newmoon.vllm.NewmoonConnector.__abstractmethods__
watch_engine_core()
from vllm.v1.core.kv_cache_manager import KVCacheManager
assert KVCacheManager.reset_prefix_cache and KVCacheManager.get_block_ids
"""
    where = os.environ.get("NEWMOON_NEXT_VLLM")
    if not where:
        pytest.fail("NEWMOON_NEXT_VLLM is not set; run ./dev test-vllm")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([where, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
