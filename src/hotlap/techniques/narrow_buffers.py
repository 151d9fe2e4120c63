"""`Buffers`: float32 buffers as bfloat16 copies from forward to backward, for `master_weights`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hotlap.errors import UsageError
from hotlap.techniques.record import StepTarget


class Buffers:
    """Puts bfloat16 copies in the place of float32 buffers from the forward to its backward.

    Outside of that the model has its own: checkpoints and evaluation know of nothing.
    """

    def __init__(self, module: Any) -> None:
        import torch

        self.wide: dict[str, tuple[dict[str, Any], str]] = {
            f"{name}.{key}" if name else key: (part._buffers, key)
            for name, part in module.named_modules()
            for key, buffer in part._buffers.items()
            if buffer is not None and buffer.dtype == torch.float32
        }
        """Path -> who holds it, and under which name."""
        self._copies: dict[str, tuple[Any, int, Any]] = {}
        """Path -> the buffer it is a copy of, that one's version, and the copy."""
        self._captured: set[str] = set()
        """Paths whose copy is one that a graph makes anew in each replay."""
        self._module, self._is_step = module, False

    def join(self, target: StepTarget) -> list[Callable[[], None]]:
        """Act on every forward; return what ends that."""
        target.forward.append(self._narrow_in_training)
        target.after_backward.append(self._use_own)
        return [
            self._module.register_forward_pre_hook(self._before_forward).remove,
            self._module.register_forward_hook(self._after_step).remove,
            self._use_own,
        ]

    @contextmanager
    def _narrow_in_training(self) -> Iterator[None]:
        self._use_narrow()
        self._is_step = True
        try:
            yield
        finally:
            self._is_step = False
        for path, (holder, key) in self.wide.items():
            copy = self._copies[path][2]
            if holder[key] is not copy or copy._version > 0:
                raise UsageError(
                    f"the model's forward writes to its buffer {path}, which master_weights holds "
                    "in bfloat16, so the values would lose precision. In the plan, replace "
                    "[techniques.master_weights] by [techniques.autocast], which keeps buffers in "
                    "float32."
                )

    def _before_forward(self, *_: Any) -> None:
        # In a step the loss may use buffers as well, and all of it may be compiled.
        if not self._is_step:
            self._use_narrow()

    def _after_step(self, *_: Any) -> None:
        if not self._is_step:
            self._use_own()

    def _use_narrow(self) -> None:
        import torch

        for path, (holder, key) in self.wide.items():
            own = holder[key]
            if own.dtype != torch.float32:
                continue
            copied, version, copy = self._copies.get(path, (None, 0, None))
            is_captured = _is_captured(own)
            is_known = copied is own and version == own._version
            # A graph must read the buffer, not a copy that another one takes the place of.
            if is_captured or path in self._captured or not is_known:
                self._captured = self._captured - {path} | ({path} if is_captured else set())
                with torch.inference_mode(False):
                    # Evaluation makes copies too, and training goes on with them.
                    copy = own.detach().to(torch.bfloat16)
                self._copies[path] = own, own._version, copy
            holder[key] = copy

    def _use_own(self) -> None:
        """Let the model have its own buffers."""
        for path, (holder, key) in self.wide.items():
            copied, _, copy = self._copies.get(path, (None, 0, None))
            if copy is not None and holder[key] is copy:
                holder[key] = copied


def _is_captured(tensor: Any) -> bool:
    """True while what is computed of the tensor becomes part of a CUDA graph."""
    import torch

    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())
