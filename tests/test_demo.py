"""What the demo says of the runs that it shows."""

from hotlap import demo
from hotlap.demo import Shown, _last_lines, _of_losses

OUTPUT = """\
3 epochs
epoch 1: loss 0.512300, test accuracy 82.10 %, 5.0 s
epoch 2: loss 0.358609, test accuracy 85.49 %, 5.0 s
epoch 3: loss 0.323149, test accuracy 87.05 %, 5.1 s
"""


def test_a_run_is_shown_with_its_last_epochs_and_what_else_was_running() -> None:
    quiet, busy = Shown(OUTPUT, 16.8, others=0.1), Shown(OUTPUT, 39.5, others=1.87)
    text = _last_lines("plain", quiet)
    assert text.startswith("plain: 16.8 s\n  epoch 2: loss") and "epoch 1" not in text
    assert "39.5 s, beside other processes that kept 1.9 cores busy\n" in _last_lines("plain", busy)
    assert "5.0 s" not in quiet.learned and "accuracy 85.49 %" in quiet.learned


def test_how_far_losses_are_apart_is_said_beside_other_accuracies() -> None:
    plain = Shown(OUTPUT, 16.8, 0.0)
    rounded = Shown(OUTPUT.replace("0.323149", "0.322436"), 10.6, 0.0)
    assert _of_losses(plain, rounded).startswith("; the last loss is 0.2% off. Runs that round")
    assert _of_losses(plain, plain) == "; the last loss is the same"
    # The digits that stand in for FashionMNIST are trained by the same script.
    assert _of_losses(Shown("nothing", 1.0, 0.0), rounded) == ""


def test_the_commands_to_type_next_can_be_pasted() -> None:
    lines = [line for line in demo._NEXT.splitlines() if line]
    assert all(line.startswith(("# ", "hotlap ")) and len(line) < 80 for line in lines)
