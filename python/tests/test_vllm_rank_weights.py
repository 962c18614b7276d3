"""What a rank does by itself: counting weight writes, and the digest of its tensors."""

import types

import pytest

pytest.importorskip("vllm")

import torch

from newmoon.vllm import rank_weights
from newmoon.vllm.digest import UnknownWeights, digest_of


class Model(torch.nn.Module):
    def __init__(self, seed=1):
        super().__init__()
        torch.manual_seed(seed)
        self.norm = torch.nn.LayerNorm(600, dtype=torch.bfloat16)
        self.linear = torch.nn.Linear(600, 8, dtype=torch.bfloat16)
        self.register_buffer("scale", torch.tensor(2.0))

    def load_weights(self, weights):
        self.loaded = weights


def packed(model):
    """As vLLM on CPU leaves a linear layer: the weight is in its kernel alone."""
    weight = model.linear.weight.detach().clone()
    model.linear.cpu_linear = lambda x, _, bias: torch.nn.functional.linear(x, weight, bias)
    model.linear.weight = torch.nn.Parameter(torch.empty(0, dtype=weight.dtype))
    model.linear.input_size = weight.shape[1]
    return weight


def test_the_digest_is_of_every_number():
    wanted = digest_of(Model())
    assert digest_of(Model()) == wanted
    assert digest_of(Model(seed=2)) != wanted
    for change in (
        lambda m: m.norm.bias.data[-1].add_(1),
        lambda m: m.linear.weight.data[3, 599].add_(1),
        lambda m: m.scale.add_(1),
        lambda m: setattr(m.norm, "eps", 50.0),  # the forward pass reads it
        lambda m: setattr(m, "uses_long_positions", True),
    ):
        model = Model()
        change(model)
        assert digest_of(model) != wanted


def test_what_the_compiler_notes_on_a_module_is_not_in_the_digest():
    compiled = Model()
    compiled.norm.compiled, compiled.norm.first_compile = True, False
    compiled._aot_compilation_path = "/a/folder/of/this/start"
    assert digest_of(compiled) == digest_of(Model())


def test_packed_weights_are_read_back():
    one, same, other = Model(), Model(), Model()
    packed(one)
    packed(same)
    weight = packed(other)
    assert digest_of(one) == digest_of(same) == digest_of(other)
    weight[7, 599] += 1  # where it really is
    assert digest_of(other) != digest_of(one)
    (first, second, third) = rank_weights_of(one)
    assert torch.equal(torch.cat([first, second, third]).t(), Model().linear.weight)


def rank_weights_of(model):
    from newmoon.vllm.digest import packed_weight

    return packed_weight(model.linear, model.linear.weight)


def test_weights_that_are_hidden_have_no_digest():
    model = Model()
    model.norm.weight = torch.nn.Parameter(torch.empty(0))
    with pytest.raises(UnknownWeights, match="norm.weight"):
        digest_of(model)


class Runner:
    def __init__(self):
        self.model = Model()

    def reload_weights(self):
        self.model.load_weights([])


class Worker:
    def __init__(self):
        self.model_runner = Runner()
        self.log = []

    def get_model(self):
        return self.model_runner.model

    def update_weights(self):
        raise TimeoutError

    def execute_model(self):
        self.log.append("step")


@pytest.fixture
def counts(monkeypatch):
    side = types.SimpleNamespace(weight_writes=0)

    def note_weight_write():
        side.weight_writes += 1

    side.note_weight_write = note_weight_write
    connector = types.SimpleNamespace(_connectors=[types.SimpleNamespace(worker_side=side)])
    monkeypatch.setattr(rank_weights, "has_kv_transfer_group", lambda: True)
    monkeypatch.setattr(rank_weights, "get_kv_transfer_group", lambda: connector)
    return side


def test_every_way_to_write_is_counted(counts):
    worker = Worker()
    rank_weights.watch_rank(types.SimpleNamespace(worker=worker))  # vLLM's wrapper
    rank_weights.watch_rank(worker)  # wraps once
    worker.execute_model()
    assert counts.weight_writes == 0
    worker.get_model().load_weights([])
    assert counts.weight_writes == 2, "before, and after"
    worker.model_runner.reload_weights()  # calls the model
    assert counts.weight_writes == 6
    with pytest.raises(TimeoutError):
        worker.update_weights()  # may have written some
    assert counts.weight_writes == 8
    writes, digest = rank_weights.weights_of_rank(worker)
    assert writes == 8 and digest == digest_of(worker.get_model())


def test_what_is_called_in_every_rank_raises_nothing(counts, monkeypatch):
    assert rank_weights.weights_of_rank(object()) is None
    rank_weights.watch_rank(object())
    monkeypatch.setattr(rank_weights, "has_kv_transfer_group", lambda: False)
    assert rank_weights.weights_of_rank(Worker()) is None


def test_vllm_has_the_methods_that_are_wrapped():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.gpu_worker import Worker

    assert all(hasattr(Worker, name) for name in rank_weights.WORKER_WRITES)
    assert all(hasattr(GPUModelRunner, name) for name in rank_weights.RUNNER_WRITES)
