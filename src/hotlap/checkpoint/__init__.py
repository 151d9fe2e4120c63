"""Checkpoints as files: steps are written, read and proven; the run's folder is locked; weights and
runs that plain scripts saved are read. What a step holds is decided in `hotlap.engine.state`.

A committed step is a folder that nobody writes to any more, and that proves itself:

    RUN/ckpt/step-000000000420/
      model.safetensors     the plain model's weights, under the plain model's names
      optimizer.safetensors, random.safetensors
      state.json            numbers: position, hyperparameters, schedule, random states
      MANIFEST.json         written last: size and SHA-256 of every file, and of itself
    RUN/ckpt/LATEST         a hint, never trusted

Where ranks hold parts of the tensors of a file, each writes its own parts, and the manifest says
which file holds which box of each tensor; who reads such a step gets whole tensors.

      model-00001-of-00002.safetensors, model-00002-of-00002.safetensors

Nothing is ever unpickled.
"""
