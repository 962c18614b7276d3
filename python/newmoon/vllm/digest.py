"""The digest of a model's tensors in memory: identity `digest`."""

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PROBE_ROWS = 256  # of the identity matrix at a time
# Of vLLM's compiler (vllm/compilation of 0.32), which sets them as it compiles: where, and whether.
COMPILER_STATE = frozenset(
    {
        "_aot_cache_dir",
        "_aot_compilation_path",
        "compiled",
        "first_compile",
        "was_aot_compile_fn_loaded_from_disk",
    }
)


class UnknownWeights(Exception):
    """Some weights cannot be read back; says which."""


def digest_of(model: torch.nn.Module) -> bytes:
    """SHA-256 over name, type, shape and bytes of every parameter and buffer, and over the numbers,
    texts and truth values that are attributes of modules, such as a norm's epsilon.

    Raises UnknownWeights.
    """
    digest = hashlib.sha256(b"newmoon weights of one rank")
    for name, value in settings_of(model):
        digest.update(f"\n{name} {value!r}\n".encode())
    with torch.inference_mode():
        for name, tensor in tensors_of(model):
            digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.digest()


def tensors_of(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in model.named_modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for key, tensor in own:
            name = f"{path}.{key}"
            if is_traceable_wrapper_subclass(tensor):
                raise UnknownWeights(f"{name} is of type {type(tensor).__name__}")
            if tensor.numel() > 0:
                yield name, tensor.detach()
            elif key == "weight" and hasattr(module, "cpu_linear"):
                for row, part in enumerate(packed_weight(module, tensor)):
                    yield f"{name} {row}", part
            else:
                raise UnknownWeights(f"{name} is empty, so its bytes are elsewhere")


def settings_of(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Nobody can say which of them the forward pass reads."""
    for path, module in model.named_modules():
        for name, value in sorted(vars(module).items()):
            is_plain = value is None or type(value) in (bool, int, float, str)
            if is_plain and name not in COMPILER_STATE:
                yield f"{path}.{name}", value


def packed_weight(module: torch.nn.Module, empty: torch.Tensor) -> Iterator[torch.Tensor]:
    """vLLM on CPU keeps a linear layer's weight in a form of its kernel's own. Multiplied by the
    identity matrix it gives every number back, exactly."""
    size = getattr(module, "input_size_per_partition", None) or module.input_size
    for begin in range(0, size, PROBE_ROWS):
        rows = torch.zeros(min(PROBE_ROWS, size - begin), size, dtype=empty.dtype)
        rows[torch.arange(len(rows)), begin + torch.arange(len(rows))] = 1
        yield module.cpu_linear(rows, empty, None)
