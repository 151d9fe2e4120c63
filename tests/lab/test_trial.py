"""Scripts that go wrong: a clear reason each, and nothing left running."""

import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError, UsageError
from hotlap.lab.last_words import last_words
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab

TINY = Path(__file__).parents[1] / "tiny.py"
LOOPS = TINY.with_name("loops.py")


def failing(*args: str, **limits: float) -> TrialError:
    script = Script(path=str(TINY), args=args, cwd=str(TINY.parent))
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with Lab(script) as lab:
        if "memory_bytes" in limits:
            lab.memory_bytes = int(limits["memory_bytes"])
        with pytest.raises(TrialError) as caught:
            trial = lab.start("observe", seconds=30, epochs=9, steps=10**9, naming_s=0)
            trial.message(["report"], limits.get("timeout_s", 30))
            raise trial.exit_error()
    after = psutil.Process().children(recursive=True)
    assert [p for p in after if p.pid not in before and p.status() != "zombie"] == []
    return caught.value


def test_a_crash_shows_the_scripts_own_error() -> None:
    error = failing("--fault", "crash")
    assert error.reason in ("crashed", "no_training")
    assert "the script crashes" in str(error)


@pytest.mark.parametrize(("role", "policy"), [("verify", "passive"), ("race", None)])
def test_threads_wait_as_the_users_own_only_where_something_is_timed(
    role: str, policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    given: dict[str, str] = {}

    def popen(*_: Any, env: dict[str, str], **__: Any) -> None:
        given.update(env)
        raise RuntimeError("not started")

    with Lab(Script(path=str(TINY), cwd=str(TINY.parent))) as lab:
        monkeypatch.setattr(lab.scratch, "popen", popen)
        with pytest.raises(RuntimeError, match="not started"):
            lab.start(role)
    assert given.get("OMP_WAIT_POLICY") == policy


def test_no_trial_starts_in_a_lab_that_was_left() -> None:
    with Lab(Script(path=str(TINY), cwd=str(TINY.parent))) as lab:
        pass
    with pytest.raises(TrialError, match="every trial was ended"):
        lab.start("observe")


def test_a_trial_that_another_thread_starts_ends_with_its_lab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begins = threading.Event()
    with Lab(Script(path=str(TINY), cwd=str(TINY.parent))) as lab:
        popen = lab.scratch.popen

        def slow(*args: Any, **options: Any) -> Any:
            begins.set()
            time.sleep(0.3)
            return popen(*args, **options)

        monkeypatch.setattr(lab.scratch, "popen", slow)
        thread = threading.Thread(target=lab.start, args=("verify",))
        thread.start()
        assert begins.wait(10)
    thread.join()
    assert [trial.is_alive for trial in lab.trials] == [False]


def test_one_of_two_trials_gets_a_network_of_its_own_after_the_other_had_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = TrialError("x", reason="crashed", output="[Errno 98] Address already in use")
    calls: list[int] = []
    with Lab(Script(path=str(TINY), cwd=str(TINY.parent))) as lab:
        monkeypatch.setattr(lab.scratch, "why_no_network", lambda: None)

        def trial() -> str:
            calls.append(1)
            # Meanwhile the other one has failed for the same address.
            lab.listens = "TCP port 1"
            if len(calls) == 1:
                raise said
            return "ran"

        assert lab.retry_if_address_in_use(trial) == "ran"
        with pytest.raises(TrialError):
            lab.retry_if_address_in_use(lambda: (_ for _ in ()).throw(said))


def test_a_trial_may_be_told_more_than_an_environment_holds() -> None:
    with Lab(Script(path=str(TINY), cwd=str(TINY.parent))) as lab:
        padding = "x" * (1 << 19)
        trial = lab.start("observe", seconds=30, epochs=9, steps=5, naming_s=0, padding=padding)
        assert trial.message(["report"], 30)["steps"] == 5


def test_a_missing_module_is_named() -> None:
    error = failing("--fault", "missing_module")
    assert "a_module_that_is_not_there" in str(error)


def test_a_script_that_hangs_is_ended_in_time() -> None:
    begin = time.monotonic()
    error = failing("--fault", "hang", timeout_s=5)
    assert error.reason == "timeout"
    assert time.monotonic() - begin < 15


def test_a_script_that_never_trains_is_told_so() -> None:
    error = failing("--fault", "no_training")
    assert error.reason == "no_training"
    assert "without an optimizer step" in str(error)


def test_a_script_that_grows_too_large_is_ended() -> None:
    error = failing("--fault", "memory", memory_bytes=600 * 2**20)
    assert error.reason == "memory"
    assert "600 MiB" in str(error)


@pytest.mark.parametrize(
    ("later", "limit"),
    [
        # A machine whose memory is what it is: 90 held of 100 leave 10.
        (10, 80),
        # One that is given more as it uses it.
        (100, 152),
        # Somebody else has taken the rest meanwhile.
        (0, 80),
    ],
)
def test_memory_that_comes_as_it_is_used_is_memory(
    later: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    available = [100]
    monkeypatch.setattr("hotlap.lab.trial.available_bytes", lambda: available[-1])
    with Lab(Script(path=str(TINY), cwd=str(TINY.parent))) as lab:
        available.append(later)
        assert lab._memory_limit(90) == limit
        lab.memory_bytes = 60
        assert lab._memory_limit(90) == 60


def test_a_script_may_print_100_megabytes() -> None:
    script = Script(path=str(TINY), args=("--fault", "spam", "--epochs", "1"), cwd=str(TINY.parent))
    with Lab(script) as lab:
        seen = watch(lab, seconds=30, epochs=9)
        assert lab.trials[0].output_bytes > 100 * 2**20
        assert len(lab.trials[0].output) < 2**20
    assert len(seen.trace.steps) == 16


def test_an_evaluation_on_the_training_data_amid_an_epoch_begins_none() -> None:
    script = Script(path=str(LOOPS), args=("evaluates", "50"), cwd=str(LOOPS.parent))
    with Lab(script) as lab:
        trace = watch(lab, seconds=30, epochs=1).trace
    assert len(trace.steps) == 50 and [*trace.epoch_starts] == [0]
    assert trace.facts.steps_per_epoch == 50
    assert not trace.evaluates_first


@pytest.mark.slow
def test_an_evaluation_before_the_first_step_is_seen() -> None:
    script = Script(path=str(LOOPS), args=("evaluates_first", "50"), cwd=str(LOOPS.parent))
    with Lab(script) as lab:
        assert watch(lab, seconds=30, epochs=1).trace.evaluates_first


def test_a_script_that_updates_its_parameters_itself_is_refused_at_once() -> None:
    script = Script(path=str(LOOPS), args=("by_hand", "10000000"), cwd=str(LOOPS.parent))
    with Lab(script) as lab, pytest.raises(UsageError, match=r"loops\.py:\d+, and no optimizer"):
        watch(lab, seconds=30)


@pytest.mark.parametrize(
    ("habit", "code", "words"),
    [("memory", 1, ["Traceback (most", "torch.empty(10**14)", "DefaultCPUAll"]), ("exit", 3, [])],
)
def test_a_script_that_dies_after_some_steps_is_no_short_script(
    habit: str, code: int, words: list[str]
) -> None:
    script = Script(path=str(LOOPS), args=(habit, "50"), cwd=str(LOOPS.parent))
    with Lab(script) as lab, pytest.raises(TrialError) as caught:
        watch(lab, seconds=30)
    assert caught.value.reason == "crashed"
    assert f"ended with exit code {code} after 6 steps" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_all_of_a_traceback_is_shown_and_of_other_output_the_end() -> None:
    chain = [
        "Traceback (most recent call last):",
        *[f"  line {n}" for n in range(20)],
        "KeyError: 1",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        "  last",
        "ValueError: 2",
    ]
    printed = [f"epoch {n}" for n in range(50)]
    assert last_words([*printed, *chain])[-len(chain) :] == chain
    assert len(last_words([*printed, *chain])) == len(chain)
    assert last_words(printed) == printed[-15:]
