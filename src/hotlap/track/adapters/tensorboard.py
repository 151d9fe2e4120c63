"""TensorBoard: event files in the run's folder. Only its own package is needed, not torch."""

import importlib
import time
from collections.abc import Mapping
from typing import Any

from hotlap.track.tracker import TrackedRun, Tracker

_FLUSH_S = 10


class TensorBoard(Tracker):
    """Writes `events.out.tfevents.*`. `tensorboard --logdir RUN` shows them, as float32.

    Args:
        run: what is tracked.
    """

    hides_later_steps = True

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        package = "tensorboard.compat.proto"
        self._event = importlib.import_module(f"{package}.event_pb2")
        self._summary = importlib.import_module(f"{package}.summary_pb2")
        writing = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = writing.EventFileWriter(str(run.files), flush_secs=_FLUSH_S)

    def begin(self, config: Mapping[str, Any]) -> None:
        # TensorBoard drops what older files hold from this step on: of a run that begins, all that
        # an earlier one in the folder has left.
        step = 0 if self._run.resumed_step is None else self._run.resumed_step + 1
        session = self._event.SessionLog(status=self._event.SessionLog.START)
        self._add(session_log=session, step=step)
        rows = "\n".join(f"| {name} | {value} |" for name, value in sorted(config.items()))
        self._add_text("config", f"| name | value |\n|---|---|\n{rows}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        kind = self._summary.Summary
        scalars = [kind.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(summary=kind(value=scalars), step=step)

    def flush(self) -> None:
        """Write what was logged."""
        self._writer.flush()

    def end(self, state: str) -> None:
        self._add_text("state", state)
        self._writer.close()

    def _add(self, **content: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), **content))

    def _add_text(self, tag: str, text: str) -> None:
        """Add a text as TensorBoard's plugin `text` reads it."""
        tensors = importlib.import_module("tensorboard.compat.proto.tensor_pb2")
        shapes = importlib.import_module("tensorboard.compat.proto.tensor_shape_pb2")
        shape = shapes.TensorShapeProto(dim=[shapes.TensorShapeProto.Dim(size=1)])
        tensor = tensors.TensorProto(
            dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape
        )
        kind, metadata = self._summary.Summary, self._summary.SummaryMetadata
        plugin = metadata(plugin_data=metadata.PluginData(plugin_name="text"))
        value = kind.Value(tag=f"{tag}/text_summary", metadata=plugin, tensor=tensor)
        self._add(summary=kind(value=[value]), step=self._run.resumed_step or 0)


ADAPTER = TensorBoard
