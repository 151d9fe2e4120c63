from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Plan:
    techniques: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
