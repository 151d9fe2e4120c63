"""Names the phases of a step, and the modules, in what torch.profiler records."""

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.profiler import record_function

from hotlap.trace.chrome.phases import LABEL
from hotlap.trace.clock import OTHER
from hotlap.trace.schema import PHASES

_WRAPPERS = ("DistributedDataParallel", "DataParallel")


class PhaseRegions:
    """Regions `hotlap.data`, `hotlap.forward` and so on, one after the other; `other` has none."""

    def __init__(self) -> None:
        self.current = OTHER
        self._is_on = False
        self._outer = OTHER
        self._open: Any = None

    def begin(self) -> None:
        """Mark regions from now on: outside of a profiler's window each costs microseconds."""
        self._is_on = True
        self.enter(self.current)

    def end(self) -> None:
        """Mark no more."""
        self._leave()
        self._is_on = False

    def enter(self, phase: int) -> None:
        """From now on it is in this phase, an index of `PHASES`."""
        if self._open is not None and phase == self.current:
            return
        self._leave()
        self.current = phase
        if self._is_on and phase != OTHER:
            self._open = record_function(f"{LABEL}{PHASES[phase]}")
            self._open.__enter__()

    def enter_nested(self, phase: int) -> None:
        """Like `enter`, until `leave_nested` goes back to what was before."""
        self._outer = self.current
        self.enter(phase)

    def leave_nested(self) -> None:
        self.enter(self._outer)

    def _leave(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


class ModuleRegions:
    """A region around each forward of each module, by its dotted name, as in `blocks.3.attention`.

    A hook in a compiled region could compile it again: modules that are compiled, or scripted, have
    none, nor has what lies in them. A model itself is named by its class; with several models, the
    class comes before each name.

    Args:
        roots: the models that are trained.
    """

    def __init__(self, roots: Sequence[torch.nn.Module]) -> None:
        self._handles: list[Any] = []
        self._innermost: list[_Begin] = []
        self.named = 0
        """Modules that have a region."""
        self.left_out = 0
        """Modules that are compiled or scripted."""
        self._frames = compiled_frames()
        several = len(roots) > 1
        for number, root in enumerate(roots):
            title = type(_unwrapped(root)).__name__
            if several and any(type(_unwrapped(r)).__name__ == title for r in roots[:number]):
                title = f"{title}_{number}"
            for name, module in _walk(_unwrapped(root), ""):
                if is_compiled(module):
                    self.left_out += sum(1 for _ in module.modules())
                else:
                    prefix = f"{title}." if several else ""
                    self._name(module, f"{prefix}{name}" if name else title)

    def have_caused_compilation(self) -> bool:
        """True if something was compiled since the regions were made: they are part of a graph."""
        return compiled_frames() > self._frames

    def unseen(self) -> int:
        """Return how many modules without others in them have not been called so far.

        In a compiled function a module is called without its hooks.
        """
        return sum(1 for begin in self._innermost if not begin.was_called)

    def remove(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _name(self, module: torch.nn.Module, name: str) -> None:
        self.named += 1
        begin = _Begin(name)
        if next(module.children(), None) is None:
            self._innermost.append(begin)
        self._handles.append(module.register_forward_pre_hook(begin, prepend=True))
        # Also where it raises: a recomputed block is left by an exception.
        self._handles.append(module.register_forward_hook(_end, always_call=True))


class _Begin:
    """Begins a module's region. Not a closure: a script may pickle its whole model meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.was_called = False

    def __call__(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.was_called = True
            region = record_function(self.name)
            region.__enter__()
            _open_regions().append(region)


def _end(*_: Any) -> None:
    # A forward that had begun before the hooks were there has no region.
    if not torch.compiler.is_compiling() and _open_regions():
        _open_regions().pop().__exit__(None, None, None)


_of_thread = threading.local()


def _open_regions() -> list[Any]:
    """Return the modules' regions that are open in this thread."""
    return vars(_of_thread).setdefault("regions", [])


def compiled_frames() -> int:
    """Return how many functions torch.compile has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["frames"]["total"])


def _unwrapped(root: torch.nn.Module) -> torch.nn.Module:
    while type(root).__name__ in _WRAPPERS and isinstance(root.module, torch.nn.Module):
        root = root.module
    return root


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether a module is compiled or scripted as a whole."""
    is_wrapped = type(module).__name__ == "OptimizedModule"
    is_scripted = isinstance(module, torch.jit.ScriptModule)
    return is_wrapped or is_scripted or getattr(module, "_compiled_call_impl", None) is not None


def _walk(
    module: torch.nn.Module, name: str, seen: set[int] | None = None
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Give each module once with its dotted name; nothing that lies in a compiled one."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    if not is_compiled(module):
        for child, value in module.named_children():
            yield from _walk(value, f"{name}.{child}" if name else child, seen)
