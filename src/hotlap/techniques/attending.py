"""Replaces `scaled_dot_product_attention` by one kernel, and notes which kernel ran.

torch's own kernels are chosen by the switches of `sdpa_kernel`. Another implementation is
registered with torch's dispatcher: calls reach it however the function was imported, from any
thread, and inside compiled and recomputed parts as well.
"""

import warnings
from collections.abc import Callable
from typing import Any

from hotlap.techniques.applying import recorded_operators

NOT_TORCHS = ("products", "xformers")
_REPORTED_AS = {"flash": "flash attention", "efficient": "memory efficient", "cudnn": "cudnn"}
"""How the lines begin under which torch says why a kernel is not used."""
_NOT_USED = "kernel not used because:"
_TRIGGERED = "(Triggered internally"


def _backends() -> dict[str, Any]:
    from torch.nn.attention import SDPBackend

    return {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }


def is_compiled(module: Any) -> bool:
    """True if a script has put `torch.compile` around a module, or compiles it in place."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def prefer_kernel(kernel: str) -> Callable[[], Any]:
    """Put one of torch's kernels first, and return what undoes it.

    The others stay allowed, so that a later shape the kernel cannot serve ends no run. Only `math`
    serves everything, and is left alone with it.
    """
    from torch.nn.attention import sdpa_kernel

    backends = _backends()
    first = backends[kernel]
    rest = [] if kernel == "math" else [b for b in backends.values() if b is not first]
    context = sdpa_kernel([first, *rest], set_priority=True)
    context.__enter__()
    return lambda: context.__exit__(None, None, None)


def intercept_attention(device: str, attend: Callable[..., Any]) -> Callable[[], None]:
    """Call `attend` wherever torch is asked for attention on that kind of device.

    Args:
        device: such as `cpu` or `cuda`.
        attend: takes what `scaled_dot_product_attention` takes, and returns what it returns.

    Returns:
        What undoes it.

    Raises:
        RuntimeError: somebody has done so already.
    """
    import torch

    library = [torch.library.Library("aten", "IMPL")]
    # The second key is for inference mode, where tensors know nothing of autograd.
    with warnings.catch_warnings():
        # Torch warns that a kernel is replaced, which is what is meant.
        warnings.simplefilter("ignore", UserWarning)
        for dispatch_key in (f"Autograd{device.upper()}", device.upper()):
            library[0].impl("scaled_dot_product_attention", attend, dispatch_key)
    _forget_dispatch()

    def undo() -> None:
        # What was registered lives as long as its library.
        library.clear()
        _forget_dispatch()

    return undo


def _forget_dispatch() -> None:
    """Let torch look up again which kernel serves attention while it traces.

    It keeps what it has found for each key, also what is no longer registered: a graph that was
    compiled after a run with another kernel had no gradients before its attention (torch 2.13).
    """
    import torch

    torch.ops.aten.scaled_dot_product_attention.default._dispatch_cache.clear()


def separate_compiled_code(kernel: str) -> Callable[[], None]:
    """Keep code compiled from now on apart in torch's caches, and return what undoes it.

    The caches are keyed by the traced graph, in which attention is one call whatever computes it:
    another run would be given the code of this one, and the other way round.
    """
    from torch.compiler import config

    before = config.cache_key_tag
    config.cache_key_tag = f"{before} hotlap attention {kernel}"

    def undo() -> None:
        config.cache_key_tag = before

    return undo


def _torchs_own(*args: Any, **kwargs: Any) -> Any:
    import torch

    return torch.ops.aten.scaled_dot_product_attention.default.decompose(*args, **kwargs)


def replacement(kernel: str, seen: "FirstForward") -> Callable[..., Any]:
    """Return what computes attention in the kernel's way, or leaves it to torch."""
    compute = products if kernel == "products" else xformers

    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        reason = _passed_on(query, key, value, attn_mask, dropout_p, enable_gqa)
        if reason is None:
            seen.served += 1
            return compute(query, key, value, is_causal, scale)
        seen.reasons.setdefault(reason)
        rest = (attn_mask, dropout_p, is_causal)
        return _torchs_own(query, key, value, *rest, scale=scale, enable_gqa=enable_gqa)

    return attend


def _passed_on(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, grouped: bool
) -> str | None:
    """Return why a call is left to torch."""
    if mask is not None:
        return "attn_mask was passed"
    if dropout:
        return f"dropout_p={dropout} would use other random numbers"
    if grouped or query.shape[:-2] != key.shape[:-2]:
        return "query and key differ in batch size or number of heads"
    if query.dim() != 4:
        return f"query has {query.dim()} dimensions, not 4"
    if value.shape[-1] != key.shape[-1]:
        return "key and value differ in their last dimension"
    return None


def products(query: Any, key: Any, value: Any, is_causal: bool, scale: float | None) -> Any:
    """Return attention by matrix products in the tensors' own format.

    Args:
        query: (batch, heads, queries, width).
        key: (batch, heads, keys, width); `value` has the same shape.
        value: see `key`.
        is_causal: query i sees keys 0 to i.
        scale: of the scores; 1 / sqrt(width) if None.
    """
    import torch

    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    query, key, value = (x.reshape(batch * heads, x.shape[2], width) for x in (query, key, value))
    bias = query.new_full((queries, keys), float("-inf") if is_causal else 0.0)
    # One operator adds the mask, scales and multiplies.
    scores = torch.baddbmm(
        bias.triu_(1), query, key.transpose(1, 2), alpha=width**-0.5 if scale is None else scale
    )
    return (scores.softmax(dim=-1) @ value).view(batch, heads, queries, width)


def xformers(query: Any, key: Any, value: Any, is_causal: bool, scale: float | None) -> Any:
    """Return attention by xFormers' memory-efficient kernels; shapes as in `products`."""
    from xformers.ops import (  # pyright: ignore[reportMissingImports]
        LowerTriangularMask,
        memory_efficient_attention,
    )

    # Its tensors are (batch, length, heads, width).
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    bias = LowerTriangularMask() if is_causal else None
    return memory_efficient_attention(query, key, value, attn_bias=bias, scale=scale).transpose(
        1, 2
    )


class FirstForward:
    """What the model's first forward showed.

    Args:
        kernel: the one that was asked for.
        prefer: puts it first, where it is torch's; called in the first call of attention, once it
            is known what torch would have taken by itself.
    """

    def __init__(self, kernel: str, prefer: Callable[[], None] | None = None) -> None:
        self.kernel, self._prefer = kernel, prefer
        self.is_default = False
        """True if torch takes the kernel by itself for the first call."""
        self.forwards = 0
        self.calls = 0
        """Times that torch was asked for attention, where the kernel is torch's."""
        self.served = 0
        """Calls that a replacement computed."""
        self.operators: set[str] = set()
        self.reasons: dict[str, None] = {}
        """Why calls were not served, in order."""

    def watch(self, module: Any, ended: Callable[[], None]) -> None:
        """Record the operators of the module's next forward that a backward may follow."""
        import torch

        contexts: list[Any] = []

        def begin(module: Any, args: Any) -> None:
            del module, args
            # In inference mode what is registered hides the operators that it calls.
            if torch.is_grad_enabled():
                contexts.append(recorded_operators(self.operators))
                contexts[-1].__enter__()

        def end(module: Any, args: Any, output: Any) -> None:
            del module, args, output
            if not contexts:
                return
            contexts.pop().__exit__(None, None, None)
            self.forwards += 1
            for handle in handles:
                handle.remove()
            ended()

        handles = [
            module.register_forward_pre_hook(begin),
            module.register_forward_hook(end, always_call=True),
        ]

    def compute_and_note(self, *args: Any, **kwargs: Any) -> Any:
        """Note why torch would not take the kernel for this call, and let torch compute it."""
        self.calls += 1
        if self._prefer is not None:
            self.is_default = _torchs_choice(args, kwargs) == self.kernel
            prefer, self._prefer = self._prefer, None
            prefer()
        for reason in _reasons(self.kernel, args, kwargs):
            self.reasons.setdefault(reason)
        return _torchs_own(*args, **kwargs)

    def judge(self) -> tuple[Any, str]:
        """Return the state of a `Proof`, and what shows it."""
        ran = ", ".join(sorted(name for name in self.operators if _is_attention(name)))
        why = "; ".join(self.reasons)
        if not self.calls + self.served + len(self.reasons):
            return "no_effect", "the first forward never called `scaled_dot_product_attention`"
        if self.served:
            left = f"; other calls used torch's own kernel: {why}" if why else ""
            calls = f"{self.kernel} computed {self.served} calls made from Python"
            return "applied", f"{calls}{ran and f' ({ran})'}{left}"
        if self.kernel in NOT_TORCHS:
            return "refused", f"every call used torch's own kernel: {why}"
        if self.kernel == "math" and not ran:
            return "applied", f"{self.calls} calls, none of which ran a fused kernel"
        if f"_{self.kernel}_attention" in ran and self.is_default:
            return (
                "no_effect",
                f"torch chooses {self.kernel} by itself; the first forward ran {ran}",
            )
        if f"_{self.kernel}_attention" in ran:
            return "applied", f"the first forward ran {ran}"
        return "refused", f"{why or 'torch gave no reason'}; {ran or 'the math kernel'} ran"


def _is_attention(name: str) -> bool:
    return "_attention" in name or "xformers" in name


def _torchs_choice(args: tuple[Any, ...], kwargs: Any) -> str | None:
    """Return the name of the kernel that torch takes for such a call, None if it has no name."""
    import torch

    try:
        choice = torch._fused_sdp_choice(*args, **kwargs)  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError:
        return None
    return next((name for name, each in _backends().items() if int(each) == choice), None)


def _reasons(kernel: str, args: tuple[Any, ...], kwargs: Any) -> list[str]:
    """Return why torch would not take its kernel for such a call, empty if it would."""
    import torch
    from torch.nn.attention import sdpa_kernel

    if kernel == "math":
        return []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([_backends()[kernel]]):
                torch._fused_sdp_choice(*args, **kwargs)  # pyright: ignore[reportPrivateImportUsage]
            return []
        except RuntimeError as error:
            lines = [str(warning.message).partition(_TRIGGERED)[0].strip() for warning in said]
            return _section(_REPORTED_AS[kernel], lines) or [str(error)]


def _section(title: str, lines: list[str]) -> list[str]:
    """Return the lines that follow the one with that title, up to the next title."""
    found, is_ours = [], False
    for line in lines:
        if line.endswith(_NOT_USED):
            is_ours = line.lower().startswith(title)
        elif is_ours:
            found.append(line.rstrip("."))
    return found
