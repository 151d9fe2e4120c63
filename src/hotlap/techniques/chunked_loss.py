"""Cross-entropy over a large vocabulary, a few rows at a time; the recipe stays as it is.

What it does   lets the model's last linear layer put its output off. `F.cross_entropy`, behind
               views, flattening, slices of positions and casts, then takes it a chunk of rows at a
               time: logits, losses and gradient of a chunk exist, those of all rows never do.
               Whatever else looks at the output gets the plain one.
               On a GPU with triton one kernel reads the logits of a row, and writes their gradient
               over them while the row is in the cache. Under `compile` with region="loss" all of
               it is one operator of the compiled graph.
When it helps  language models: tokens x vocabulary x 4 bytes, three times over, is often the peak
               of a step. A batch of 16 x 1024 tokens over 50,257 classes is 3.1 GiB each time.
When it hurts  few classes: many small calls for nothing. It runs the layer again only for float16
               and `reduction="none"`. Small chunks cost time on a GPU: each adds to the gradient of
               the whole weight; choose `rows` as large as memory allows. Beliefs to correct: it is
               not an approximation, no class is left out; on a CPU it saves no time; logits that
               are scaled, capped or searched (`logits / t`, `tanh`, `argmax`) before the loss are
               made as before, and gain nothing.
Numerics       rounding: gradients of the weight are summed chunk by chunk, in float32.
Measured       benchmarks/results/2026-11-27_gpu-again_h200.md (GPT-2 124M: 2.3 % and 3 GiB);
               `python -m benchmarks memory` prints peak and time on a CPU
Source         Wijmans et al. 2024, arXiv 2411.09009; Hsu et al. 2024, arXiv 2410.10989.
"""

import types
from dataclasses import dataclass
from typing import Any

from hotlap.task import TaskFacts
from hotlap.techniques.record import (
    ModelTarget,
    Numerics,
    Proof,
    Refusal,
    Technique,
    own_forward_again,
)

_NO_LAYER = (
    "the model has no linear layer whose output a loss could take. Expected: at least one "
    "`Linear`; or use a plan without chunked_loss."
)


@dataclass(frozen=True)
class Options:
    rows: int = 1024
    """Rows (tokens) of logits that exist at once."""

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ValueError(f"rows={self.rows} is out of range. Expected: 1 or more.")


def why_not(task: TaskFacts) -> str | None:
    if not any(name.endswith("Linear") for name in task.layers):
        return _NO_LAYER
    return None


def apply(target: ModelTarget, options: Options) -> ModelTarget:
    import torch

    from hotlap.kernels.cross_entropy import Chunks

    layers = [m for m in target.module.modules() if type(m) is torch.nn.Linear]
    if not layers:
        raise Refusal(_NO_LAYER)
    head = layers[-1]
    if "forward" in vars(head):
        raise Refusal(
            "the `forward` of the last linear layer is already replaced, by fp8 or by your own "
            "code. Remove fp8 or chunked_loss from the plan, or remove the replacement from your "
            "code."
        )
    seen = Chunks(limit=options.rows)
    # A bound method, so that a copied model's layer calls the copy, and a pickled one its own.
    head.forward = types.MethodType(_forward(seen), head)
    target.notes["chunked_loss"] = seen
    target.ended.append(own_forward_again(head))
    return target


def _forward(seen: Any) -> Any:
    import torch

    from hotlap.kernels.logits import Logits, Source

    def forward(self: Any, hidden: Any) -> Any:
        if seen.is_traced and torch.compiler.is_compiling():
            return type(self).forward(self, hidden)
        return deferred(self, hidden)

    def put_off(self: Any, hidden: Any) -> Any:
        is_wanted = self.training and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if not is_wanted or hidden.dim() < 2:
            return type(self).forward(self, hidden)
        kind = hidden.device.type
        narrow = torch.is_autocast_enabled(kind)
        product = torch.get_autocast_dtype(kind) if narrow else hidden.dtype
        source = Source(
            hidden=hidden,
            weight=self.weight,
            bias=self.bias,
            product=product,
            dtype=product,
            classes_at=hidden.dim() - 1,
            rows=seen.limit,
            seen=seen,
        )
        return Logits.of(source)

    # Kept out of traced graphs, where a tensor without numbers would be none.
    deferred: Any = torch.compiler.disable(put_off)
    return forward


def proof(target: ModelTarget) -> Proof:
    seen = target.notes["chunked_loss"]
    if seen.count == 0:
        return Proof(
            "no_effect",
            "the last linear layer's output was never passed directly to `cross_entropy`, or the "
            "model is compiled without its loss (`compile` with region='loss' has both)",
        )
    text = f"{seen.count} chunks for {seen.losses} losses; at most {seen.most_rows} of {seen.rows}"
    return Proof("applied", f"{text} rows of logits existed at once")


TECHNIQUE = Technique(
    name="chunked_loss",
    seam="model",
    Options=Options,
    numerics=lambda: Numerics.ROUNDING,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=lambda: (),
)
