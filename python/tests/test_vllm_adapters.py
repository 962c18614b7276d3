"""When the adapter behind a name and path is another one: what tells it, and in real vLLM."""

import os

import pytest

pytest.importorskip("vllm")

from processes import run_flow
from vllm.lora.request import LoRARequest

from newmoon.vllm.adapters import Adapters

pytestmark = pytest.mark.nightly


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, 1)
    return tmp_path


def write(folder, second):
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    os.utime(folder / "adapter_model.safetensors", (second, second))


def adapter(folder, number=1, name="a", **more):
    return LoRARequest(name, number, str(folder), **more)


def test_the_first_request_and_its_like_are_no_news(folder):
    adapters = Adapters()
    assert not adapters.has_changed(adapter(folder))
    assert not adapters.has_changed(adapter(folder))
    assert not adapters.has_changed(adapter(folder, 2, "b")), "its blocks have other hashes"


def test_another_id_of_the_same_name_and_path_is_loaded_anew(folder):
    adapters = Adapters()
    adapters.has_changed(adapter(folder, 1))
    assert adapters.has_changed(adapter(folder, 2))
    assert not adapters.has_changed(adapter(folder, 2))
    assert adapters.has_changed(adapter(folder, 1)), "which may still be the old one"


def test_files_that_were_written_again_are_news_and_settle_with_another_id(folder):
    adapters = Adapters()
    adapters.has_changed(adapter(folder))
    assert adapters.may_read(adapter(folder))
    write(folder, 2)
    assert adapters.has_changed(adapter(folder))
    assert not adapters.has_changed(adapter(folder))
    assert not adapters.may_read(adapter(folder)), "vLLM loads it whenever it likes"
    assert adapters.has_changed(adapter(folder, 2))
    assert adapters.may_read(adapter(folder, 2))


def test_loading_in_place_is_always_news(folder):
    adapters = Adapters()
    for _ in range(2):
        assert adapters.has_changed(adapter(folder, load_inplace=True))
        assert not adapters.may_read(adapter(folder, load_inplace=True))


def test_an_adapter_without_files_here_is_told_by_its_id():
    adapters = Adapters()
    assert not adapters.has_changed(adapter("hub/name"))
    assert not adapters.has_changed(adapter("hub/name"))
    assert adapters.has_changed(adapter("hub/name", 2))


def run(tiny_model, tmp_path_factory, connector):
    folder = str(tmp_path_factory.mktemp("adapters"))
    return run_flow("vllm_adapters_flow.py", tiny_model, folder, connector)


@pytest.fixture(scope="module")
def told(tiny_model, tmp_path_factory):
    return run(tiny_model, tmp_path_factory, "with")


@pytest.fixture(scope="module")
def plain(tiny_model, tmp_path_factory):
    return run(tiny_model, tmp_path_factory, "without")


@pytest.mark.parametrize("name", ["one", "two", "three", "four"])
def test_an_adapter_behind_an_old_name_and_path_uses_nothing_old(told, name):
    assert told[name]["cached"] == 0
    assert told[name]["logprobs"] == told[f"fresh {name}"]["logprobs"]
    others = {"base", "one", "two", "three", "four"} - {name}
    assert all(told[name]["logprobs"] != told[other]["logprobs"] for other in others)


def test_vllms_own_cache_serves_adapters_that_are_what_they_were(told):
    for name in ("one", "two"):
        assert told[f"{name} again"]["local"] == told[f"{name} again"]["cached"] == 6 * 128
        assert told[f"{name} again"]["tokens"] == told[name]["tokens"]
    assert told["not loaded yet"]["cached"] == 0, "who knows when vLLM loads it"


def test_adapters_use_no_external_cache(told):
    assert all(step["external"] == 0 for step in told.values() if "external" in step)
    assert told["stats"]["saved_blocks"] == 6, "the base model's"


# --- the row "LoRA in place, no pause" of docs/guarantees.md ---


@pytest.mark.parametrize("name", ["six", "left"])
def test_an_adapter_loaded_in_place_under_a_request_uses_nothing_old(told, name):
    assert told[name]["cached"] == 0
    assert told[name]["logprobs"] == told[f"fresh {name}"]["logprobs"]
    assert told["six"]["logprobs"] != told["five"]["logprobs"]


def test_the_request_itself_goes_on_with_what_it_has(told):
    """Else the page says less than it could."""
    assert told["across"]["ended"] == "length"
    assert told["across"]["logprobs"][-8:] != told["fresh across"]["logprobs"][-8:]


def test_without_the_connector_it_would_be_stale(plain):
    """So the comparison can fail."""
    for name in ("six", "left"):
        assert plain[name]["cached"] >= 6 * 128
        assert plain[name]["logprobs"] != plain[f"fresh {name}"]["logprobs"]
