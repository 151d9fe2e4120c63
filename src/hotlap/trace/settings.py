"""What a script has set for all of its steps: anomaly detection, precision, threads."""

from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from hotlap.host.probes import affinity
from hotlap.trace import frames
from hotlap.trace.source.statements import place_of_call
from hotlap.usercode import source_files


class Settings:
    """Notes at backwards and steps what was set; anomaly detection is asked for at every one."""

    def __init__(self) -> None:
        self._backward_where = ""
        self.finds_anomalies = False
        self._keeps_graph = False

    def note_backward(self, frame: FrameType | None) -> None:
        """One of the first backwards begins, called from this frame."""
        self._backward_where = self._backward_where or frames.location_of(frame)

    def note_gradients(self, optimizer: Any) -> None:
        """An optimizer has stepped with the gradients that its parameters still have."""
        self._keeps_graph = self._keeps_graph or any(
            parameter.grad is not None and parameter.grad.grad_fn is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def facts(self, roots: Sequence[Any]) -> dict[str, Any]:
        """Return these facts of a `hotlap.task.TaskFacts`.

        Args:
            roots: the trained modules.
        """
        elements = [(p.numel(), p.dtype) for root in roots for p in root.parameters()]
        total = sum(count for count, _ in elements)
        double = sum(count for count, dtype in elements if dtype is torch.float64)
        return {
            "backward_where": self._backward_where,
            "finds_anomalies": self.finds_anomalies,
            "anomalies_where": _called("set_detect_anomaly", "detect_anomaly")
            if self.finds_anomalies
            else "",
            "keeps_gradient_graph": self._keeps_graph,
            "in_float64": double / total if total else 0.0,
            "cores": affinity(),
            "threads_where": _called("set_num_threads"),
        }


def _called(*names: str) -> str:
    """Return `file:line` where the user's code calls a function, empty if it does not."""
    found = place_of_call(source_files(), names)
    return "" if found is None else f"{frames.shorten_path(found[0])}:{found[1]}"
