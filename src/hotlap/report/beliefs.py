"""What people believe of switches that are in many training scripts, and what is true."""

BELIEFS = {
    "empty_cache": """torch.cuda.empty_cache() is said to free memory.

It gives blocks back to the driver in which no tensor lives. Nothing that is alive is freed, and
torch would have used those blocks itself before it asked for more. Called in a loop, the next step
asks the driver again and waits for it. It helps another process on the same GPU, and a model that
is loaded once after another was dropped. What holds memory is a reference: see `allocator` for
holes between blocks, and `micro_batch` for steps that do not fit.""",
    "pin_memory": """pin_memory=True is said to make loading faster.

It makes copies to a GPU faster, and only non_blocking ones can run beside the computation. Training
on a CPU it does nothing: there is no copy, and a DataLoader without an accelerator warns and pins
nothing. Too many pinned bytes slow everything else: the system cannot move or evict them.""",
    "non_blocking": """x.to(device, non_blocking=True) is said to overlap copies with work.

Only from pinned memory. From other memory the copy goes through a pinned buffer of the driver, and
the call returns when the source was read. In the other direction, to the CPU, the values are not
there yet when the call returns: reading them without a synchronisation gives what was there
before.""",
    "gc_collect": """gc.collect() after each step is said to save memory.

Tensors are freed when the last reference to them goes, at once and without the collector. It finds
cycles of references only, and looks at every object of the process for that, tens of milliseconds
in a large one. See `garbage_collector` for collecting rarely, at a moment of one's own choice.""",
    "zero_grad": """zero_grad(set_to_none=True) is said to be a speed-up worth writing down.

It is torch's default. What costs memory is its place: gradients that are forgotten right after the
update are not there in the next forward.""",
    "torch_seed": """A seed is said to make a run repeat itself.

On a CPU with the same number of threads, mostly. On a GPU some operators add in an order that
changes, whatever the seed: see `deterministic`. Worker processes have random states of their own,
and numpy's and Python's generators have seeds of their own.""",
    "autocast_memory": """Autocast is said to halve memory.

Weights and the optimizer's state stay in float32, and cast copies of the weights are kept for the
backward: on models of linear layers it can raise memory. Activations are what it makes smaller.
See `autocast` and `master_weights`.""",
    "tf32": """TF32 is said to be off unless asked for.

Off for products of matrices, on for cuDNN's convolutions and recurrent layers, on every NVIDIA GPU
from compute capability 8.0 on. See `matmul_precision` for the former; for the latter it is
torch.backends.cudnn.allow_tf32.""",
}
"""Name -> first line: what is believed; then what is true."""
