"""Gradients of embeddings in bfloat16, summed in float32 on a CPU."""

from typing import Any


def sum_embeddings_in_float32(module: Any) -> list[Any]:
    """Let rows that occur often keep what each occurrence adds; return what undoes it.

    On a CPU torch adds them up one by one in bfloat16, where a long sum stops growing. On a GPU it
    sums in float32.
    """
    import torch

    undo = []
    for each in module.modules():
        is_plain = type(each) is torch.nn.Embedding and "forward" not in vars(each)
        if is_plain and not (each.max_norm or each.sparse or each.scale_grad_by_freq):
            each.forward = _lookup(each)
            undo.append(lambda each=each: delattr(each, "forward"))
    return undo


def _lookup(embedding: Any) -> Any:
    import torch

    padding = -1 if embedding.padding_idx is None else embedding.padding_idx

    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any, indices: Any) -> Any:
            ctx.save_for_backward(indices)
            ctx.rows = len(weight)
            return torch.nn.functional.embedding(indices, weight)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (indices,) = ctx.saved_tensors
            wide = torch.ops.aten.embedding_dense_backward(
                gradients[0].float(), indices, ctx.rows, padding, False
            )
            return wide.to(gradients[0].dtype), None

    return lambda indices: Lookup.apply(embedding.weight, indices)
