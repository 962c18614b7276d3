"""What a request may say of the external cache, in its kv_transfer_params:

{"newmoon": {"load": false, "save": false, "weight_version": "step-42"}}
"""

import dataclasses
import reprlib
from collections.abc import Mapping
from typing import Any, get_type_hints

from vllm.logger import init_logger

logger = init_logger("vllm.newmoon")


@dataclasses.dataclass(frozen=True)
class RequestParams:
    load: bool = True  # look it up, and load what is found
    save: bool = True  # save what it computes
    # Neither, unless the engine's weights go by this name. A guard and no identity: a request that
    # comes before its update would name weights that do not compute it.
    weight_version: str | None = None

    def may_load(self, weight_version: str | None) -> bool:
        return self.load and self._is_meant_for(weight_version)

    def may_save(self, weight_version: str | None) -> bool:
        return self.save and self._is_meant_for(weight_version)

    def _is_meant_for(self, weight_version: str | None) -> bool:
        """`weight_version`: the engine's; None if nobody has named the weights that it has."""
        return self.weight_version in (None, weight_version)


DEFAULT = RequestParams()
WITHOUT = RequestParams(load=False, save=False)
TYPES = get_type_hints(RequestParams)


def parse_request_params(kv_transfer_params: Any) -> RequestParams:
    """A request with something under "newmoon" that is not understood goes without the external cache,
    since that may be what it asked for, and the log says so: vLLM has taken the request by then, and
    an exception here would end the engine. Other names than "newmoon" are others'.
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
        return WITHOUT
    strange = {
        name: v for name, v in asked.items() if name not in TYPES or not isinstance(v, TYPES[name])
    }
    if strange:
        warn(strange)
        return WITHOUT
    return RequestParams(**asked)


def warn(what: Any) -> None:
    logger.warning(
        'newmoon: "newmoon" in kv_transfer_params takes {"load": BOOL, "save": BOOL, '
        '"weight_version": TEXT}; a request goes without the external cache, for it has %.200s',
        reprlib.repr(what),  # however deep it is nested
    )
