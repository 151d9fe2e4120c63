"""Common beliefs about switches in training scripts, and what is true of them."""

BELIEFS = {
    "empty_cache": """torch.cuda.empty_cache() is said to free memory.

It returns cached blocks without live tensors to the driver. No live tensor is freed, and torch
would have reused those blocks before it asked for more. Called in a loop, it makes the next step
ask the driver again and wait for it. It helps another process on the same GPU, and a model that is
loaded once after another was deleted.

What each returns, and to whom:

del x          drops one reference. With the last one, the tensor's block goes back to torch's cache
               at once: this process can use it again, and `nvidia-smi` shows no change. Lists of
               losses, an exception's traceback, and a notebook's `_` and `Out` hold references too.
gc.collect()   drops objects that only refer to each other (cycles). Their blocks go to torch's
               cache as well. Without cycles it returns nothing: see `gc_collect`.
empty_cache()  returns unused segments of the cache to the driver, for other processes. Call it
               after the two above: before them, the blocks are in use.
A restart      of the process (a notebook's kernel) returns everything to the system, also the CUDA
               context (a few hundred MiB). Nothing else helps after a device-side assert: see
               `index_out_of_range`.
On a CPU       freed memory goes back to the C library, which may keep it: see `host_allocator`.

To need less memory, see `micro_batch` for steps that do not fit, and `allocator` for
fragmentation.""",
    "pin_memory": """pin_memory=True is said to make loading faster.

It makes copies to a GPU faster, and only non_blocking ones can overlap with computation. For
training on a CPU it does nothing: there is no copy, and a DataLoader without an accelerator warns
and pins nothing. Too much pinned memory slows everything else: the system cannot move or evict
it.""",
    "non_blocking": """x.to(device, non_blocking=True) is said to overlap copies with work.

Only from pinned memory. From other memory the copy goes through a pinned buffer of the driver, and
the call returns when the source was read. In the other direction, to the CPU, the copy may not be
complete when the call returns: reading the values without a synchronization gives stale data.""",
    "gc_collect": """gc.collect() after each step is said to save memory.

Tensors are freed as soon as the last reference to them is gone, without the collector. The
collector only finds reference cycles, and visits every object of the process to do so: tens of
milliseconds in a large one. See `garbage_collector` for collecting rarely, at a chosen time.""",
    "zero_grad": """zero_grad(set_to_none=True) is said to be a speed-up worth writing down.

It is torch's default. What matters for memory is where it is called: gradients that are set to None
right after the update take no memory in the next forward.""",
    "torch_seed": """A seed is said to make a run repeat itself.

On a CPU with the same number of threads, mostly. On a GPU some operators add in an order that
changes, whatever the seed: see `deterministic`. Worker processes have their own RNG state, and
NumPy and Python have their own seeds.""",
    "autocast_memory": """Autocast is said to halve memory.

Weights and the optimizer's state stay in float32, and cast copies of the weights are kept for the
backward: for models of linear layers it can increase memory. It only makes activations smaller.
See `autocast` and `master_weights`.""",
    "tf32": """TF32 is said to be off unless asked for.

Off for products of matrices, on for cuDNN's convolutions and recurrent layers, on every NVIDIA GPU
from compute capability 8.0 on. See `matmul_precision` for the former; for the latter it is
torch.backends.cudnn.allow_tf32.""",
}
"""Name -> first line: what is believed; then what is true."""
