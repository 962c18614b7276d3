"""What a request may say of the external cache, in its kv_transfer_params:

{"newmoon": {"load": false, "save": false}}
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vllm.logger import init_logger

logger = init_logger("vllm.newmoon")


@dataclasses.dataclass(frozen=True)
class RequestParams:
    load: bool = True  # look it up, and load what is found
    save: bool = True  # save what it computes


DEFAULT = RequestParams()


def parse_request_params(kv_transfer_params: Any) -> RequestParams:
    """What is not understood is left out, and the log says so: vLLM has taken the request by then,
    and an exception here would end the engine. Other names than "newmoon" are others'.
    """
    if not isinstance(kv_transfer_params, Mapping):
        if kv_transfer_params is not None:
            logger.warning("newmoon: kv_transfer_params is no dict; ignored")
        return DEFAULT
    asked = kv_transfer_params.get("newmoon")
    if asked is None:
        return DEFAULT
    if not isinstance(asked, Mapping):
        warn(asked)
        return DEFAULT
    known = {field.name for field in dataclasses.fields(RequestParams)}
    good = {name: v for name, v in asked.items() if name in known and type(v) is bool}
    if len(good) < len(asked):
        warn({name: v for name, v in asked.items() if name not in good})
    return RequestParams(**good)


def warn(what: Any) -> None:
    logger.warning(
        'newmoon: "newmoon" in kv_transfer_params takes {"load": BOOL, "save": BOOL}; '
        "ignored: %.200r",
        what,
    )
