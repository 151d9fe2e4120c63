"""`hotlap export`: writes a trained model as a state dict, torch.export program or ONNX."""

from typing import Annotated

from cyclopts import Parameter

from hotlap.cli.command import Command
from hotlap.cli.options import JsonFlag
from hotlap.cli.script import StartFolder, task_of
from hotlap.cli.starting import say
from hotlap.cli.target import Target


def export(
    *,
    target: Target,
    source: Annotated[
        str | None,
        Parameter(name="--from", help="A run's folder, a folder `step-...`, or a file of weights."),
    ] = None,
    to: Annotated[str | None, Parameter(help="The file: .pt, .safetensors, .pt2 or .onnx.")] = None,
    overwrite: Annotated[bool, Parameter(help="Replace an existing file.")] = False,
    json: JsonFlag = False,
) -> int:
    """Write a trained model to a file, and check that its outputs match the model's.

    .pt and .safetensors hold a state dict for the plain model; .pt2 is a program of torch.export;
    .onnx is for other runtimes, TensorRT among them. No code inside --from is ever run.
    """
    from hotlap.engine.export.exporting import export as export_task
    from hotlap.errors import UsageError
    from hotlap.report import jsonout

    if source is None or to is None:
        missing = "--from" if source is None else "--to"
        raise UsageError(
            f"{missing} is missing. Expected: --from with a run or weights to read, and --to with "
            "the file to write, as in `--from runs/1 --to model.pt2`."
        )
    start = StartFolder()
    with task_of(target) as task:
        found, file = str(start.path(source)), str(start.path(to))
        done = export_task(task, found, file, overwrite=overwrite, notice=say)
    if json:
        jsonout.write(done.to_json())
    else:
        say(f"{done.path}: {done.bytes:,} bytes, weights of '{done.source}'; {done.checked}")
    return 0


COMMAND = Command(
    name="export",
    function=export,
    takes_script=True,
    examples=(
        "hotlap export recipe.py --from runs/1 --to model.pt     # for model.load_state_dict",
        "hotlap export recipe.py --from runs/1 --to model.onnx   # needs hotlap[export]",
        "hotlap export recipe.py --from old.pth --to model.safetensors",
    ),
)
