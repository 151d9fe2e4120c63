"""The kernel of `softmax_rows`; only imported where triton is there."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import triton
import triton.language as tl


@triton.jit
def kernel(
    logits: tl.tensor,
    stride: tl.tensor,
    targets: tl.tensor,
    losses: tl.tensor,
    scales: tl.tensor,
    scale_stride: tl.tensor,
    ignore_index: tl.tensor,
    smoothing: tl.tensor,
    classes: tl.constexpr,
    IS_SMOOTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Take one row, see `softmax_rows.take_losses`; strides are in elements."""
    row = tl.program_id(0).to(tl.int64)
    first = logits + row * stride
    target = tl.load(targets + row)
    within = tl.arange(0, BLOCK)
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        for begin in range(0, classes, BLOCK):
            place = begin + within
            zeros = tl.zeros([BLOCK], dtype=logits.dtype.element_ty)
            tl.store(first + place, zeros, mask=place < classes)
        return
    largest = float("-inf")
    total = 0.0
    plain_sum = 0.0
    for begin in range(0, classes, BLOCK):
        place = begin + within
        is_class = place < classes
        # To be read again soon, from the cache.
        read = tl.load(
            first + place, mask=is_class, other=float("-inf"), eviction_policy="evict_last"
        )
        values = read.to(tl.float32)
        if IS_SMOOTH:
            plain_sum += tl.sum(tl.where(is_class, values, 0.0), 0)
        now = tl.maximum(largest, tl.max(values, 0))
        # Where all have been -inf so far, a difference would be no number.
        base = tl.where(now == float("-inf"), 0.0, now)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(values - base), 0)
        largest = now
    log_sum = largest + tl.log(total)
    picked = tl.load(first + target).to(tl.float32)
    loss = log_sum - picked
    even = 0.0
    if IS_SMOOTH:
        even = smoothing / classes
        loss = (1 - smoothing) * loss + smoothing * (log_sum - plain_sum / classes)
    tl.store(losses + row, loss)
    scale = tl.load(scales + row * scale_stride)
    # No thread writes before the others have read the target's logit.
    tl.debug_barrier()
    for begin in range(0, classes, BLOCK):
        place = begin + within
        is_class = place < classes
        read = tl.load(
            first + place, mask=is_class, other=float("-inf"), eviction_policy="evict_first"
        )
        gradient = (tl.exp(read.to(tl.float32) - log_sum) - even) * scale
        tl.store(
            first + place,
            gradient.to(logits.dtype.element_ty),
            mask=is_class,
            eviction_policy="evict_first",
        )
    # To look for the target in each block costs a tenth of the time.
    tl.debug_barrier()
    gradient = (tl.exp(picked - log_sum) - even - (1 - smoothing)) * scale
    tl.store(first + target, gradient.to(logits.dtype.element_ty))
