"""Settings of the process: set for the run, undone after it, and proven by what they do."""

import gc
import os
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hotlap
from hotlap.attach.entry import environment
from hotlap.device import process_settings
from hotlap.errors import PlanError
from hotlap.host.facts import Gpu, Host
from hotlap.plan import Plan
from hotlap.task import TaskFacts
from hotlap.techniques import ProcessTarget, check, get
from hotlap.techniques.allocator import VARIABLES, merge, parse
from hotlap.techniques.applying import Applied
from hotlap.trial.protocol import Config
from tests.engine.test_conformance import task

GPU_HOST = Host(platform="linux", gpus=(Gpu(0, "GPU-1", "H200", 1, 1, "9.0", "570"),))


def states() -> tuple[Any, ...]:
    return (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,  # pyright: ignore
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        gc.isenabled(),
        gc.get_freeze_count(),
        len(gc.callbacks),
        process_settings.keeps_freed_memory(),
        float(torch.full((1,), 2e-38) * 0.5),
    )


ALL = Plan(
    {
        "threads": {"count": 2},
        "flush_denormal": {},
        "host_allocator": {},
        "garbage_collector": {"every": 2},
        "deterministic": {},
    }
)


@pytest.fixture
def before() -> Iterator[tuple[Any, ...]]:
    gc.unfreeze()
    yield states()


def test_every_switch_is_set_for_the_run_and_undone_after_it(before: tuple[Any, ...]) -> None:
    seen = []
    for step in hotlap.steps(task(steps=4), ALL):
        if step.number == 3:
            seen.append(states())
    same = [n for n, (a, b) in enumerate(zip(seen[0], before, strict=True)) if a == b]
    # The precision of products and the search for algorithms are not in the plan.
    assert same == [1, 2]
    assert states() == before


@pytest.mark.skipif(
    process_settings.keeps_freed_memory() is None, reason="needs glibc 2.33 or newer"
)
def test_memory_that_is_free_in_the_heap_does_not_look_like_kept_memory() -> None:
    stop_keeping = process_settings.keep_freed_memory()
    assert process_settings.keeps_freed_memory()
    freed = torch.empty(100 * 2**20, dtype=torch.uint8)
    # The heap does not shrink below a block that is in use.
    above = torch.empty(100 * 2**20, dtype=torch.uint8)
    del freed
    stop_keeping()
    assert not process_settings.keeps_freed_memory()
    del above


def test_a_training_undoes_them_at_its_end_and_where_it_fails(before: tuple[Any, ...]) -> None:
    plan = Plan({"threads": {"count": 2}, "garbage_collector": {}, "deterministic": {}})

    def seen(_: Any) -> None:
        assert torch.are_deterministic_algorithms_enabled()

    hotlap.train(task(steps=2), plan, progress=seen)
    assert states() == before

    def fails(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        hotlap.train(task(steps=2), plan, progress=fails)
    assert states() == before


def test_a_loop_that_is_left_undoes_them_too(before: tuple[Any, ...]) -> None:
    steps = hotlap.steps(task(steps=4), ALL)
    next(steps)
    assert torch.are_deterministic_algorithms_enabled()
    steps.close()
    assert states() == before


def test_a_run_that_fails_undoes_them_too(before: tuple[Any, ...]) -> None:
    def broken() -> Any:
        assert torch.are_deterministic_algorithms_enabled()
        raise ZeroDivisionError

    wrong = hotlap.Task(
        model=broken,
        loss=task().loss,
        data=task().data,
        optimizer=task().optimizer,
        batch_size=4,
        steps=1,
    )
    with pytest.raises(ZeroDivisionError):
        hotlap.train(wrong, ALL)
    assert states() == before


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A device that takes settings and remembers them."""
    fake: dict[str, Any] = {"settings": "", "backend": "native", "segments": (2, 3)}
    fake["has_begun"] = True
    monkeypatch.setattr(process_settings, "has_cuda", lambda: True)
    monkeypatch.setattr(process_settings, "cuda_has_begun", lambda: fake["has_begun"])
    monkeypatch.setattr(process_settings, "allocator_settings", lambda: fake["settings"])
    monkeypatch.setattr(process_settings, "allocator_backend", lambda: fake["backend"])
    monkeypatch.setattr(process_settings, "expandable_segments", lambda: fake["segments"])

    def error(device: str) -> float:
        assert fake["has_begun"], "a product has opened a device"
        return fake.get("error", 4e-4)

    def kernels(device: str) -> tuple[int, int]:
        fake["searches"] = fake.get("searches", 0) + 1
        return fake["kernels"]

    monkeypatch.setattr(process_settings, "refused_product", lambda device: None)
    monkeypatch.setattr(process_settings, "product_error", error)
    monkeypatch.setattr(process_settings, "kernels_of_convolutions", kernels)

    def change(settings: str) -> bool:
        fake["settings"] = settings
        return True

    monkeypatch.setattr(process_settings, "set_allocator", change)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return fake


def proven(name: str, fake: dict[str, Any], **options: Any) -> tuple[str, str, str]:
    """Run a technique on the fake device; return its state, why, and the settings left behind."""
    applied = Applied(Plan({name: options}))
    switched = applied.start("cuda")
    (row,) = applied.proofs()
    switched.undo()
    return row["state"], row["why"], fake["settings"]


def test_the_allocator_is_told_and_told_back(on_cuda: dict[str, Any]) -> None:
    on_cuda["settings"] = "max_split_size_mb:64"
    state, why, left = proven("allocator", on_cuda)
    assert (state, why) == ("applied", "2 of 3 GPU memory segments are expandable")
    assert parse(left) == {"max_split_size_mb": "64", "expandable_segments": "False"}


@pytest.mark.parametrize("before", ["", "garbage_collection_threshold:0.5"])
def test_the_way_back_is_one_that_torch_takes(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(process_settings, "has_cuda", lambda: True)
    process_settings.set_allocator(before or "expandable_segments:False")
    if process_settings.allocator_settings() is None:
        pytest.skip("this torch does not report its allocator's settings")
    applied = Applied(Plan({"allocator": {"garbage_collection_threshold": 0.8}}))
    switched = applied.start("cuda")
    assert (
        parse(process_settings.allocator_settings() or "")["garbage_collection_threshold"] == "0.8"
    )
    switched.undo()
    left = parse(process_settings.allocator_settings() or "")
    assert left.get("garbage_collection_threshold", "") == before.partition(":")[2]
    process_settings.set_allocator("expandable_segments:False")


def test_an_allocator_that_does_not_tell_its_settings_is_proven_by_its_segments(
    on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_settings, "allocator_settings", lambda: None)
    state, why, _ = proven("allocator", on_cuda)
    assert (state, why) == ("applied", "2 of 3 GPU memory segments are expandable")
    only = {"expandable_segments": False, "max_split_size_mib": 64}
    assert "does not report" in proven("allocator", on_cuda, **only)[1]


def test_an_allocator_without_growing_segments_is_no_effect(on_cuda: dict[str, Any]) -> None:
    on_cuda["segments"] = (0, 3)
    assert proven("allocator", on_cuda)[:2] == (
        "no_effect",
        "none of 3 GPU memory segments is expandable",
    )


def test_what_the_environment_says_of_the_allocator_is_kept(
    on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[1], "expandable_segments:False")
    state, why, _ = proven("allocator", on_cuda)
    assert state == "refused" and "already sets expandable_segments:False" in why
    options = get("allocator").options({"max_split_size_mib": 64})
    text = merge(options, {VARIABLES[0]: "roundup_power2_divisions:[256:1,512:2]"})
    assert parse(text) == {
        "expandable_segments": "True",
        "max_split_size_mb": "64",
        "roundup_power2_divisions": "[256:1,512:2]",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_split_size_mib": 20}, "21 to"),
        ({"garbage_collection_threshold": 1.0}, "at least 0.0 and less than 1.0"),
        ({"backend": "cudaMallocAsync"}, "takes no other setting"),
        ({"backend": "jemalloc"}, "native"),
    ],
)
def test_wrong_settings_of_the_allocator_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check(Plan({"allocator": options}))


def test_another_backend_cannot_be_had_once_the_process_runs(on_cuda: dict[str, Any]) -> None:
    options = {"backend": "cudaMallocAsync", "expandable_segments": False}
    state, why, _ = proven("allocator", on_cuda, **options)
    assert state == "refused" and "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync" in why


def test_a_product_that_stays_float32_is_refused(on_cuda: dict[str, Any]) -> None:
    before = torch.get_float32_matmul_precision()
    assert proven("matmul_precision", on_cuda)[0] == "applied"
    on_cuda["error"] = 5e-7
    state, why, _ = proven("matmul_precision", on_cuda)
    assert state == "refused" and "relative error of a product is 5e-07" in why
    assert torch.get_float32_matmul_precision() == before


def test_nothing_is_multiplied_before_the_script_has_chosen_its_device(
    on_cuda: dict[str, Any],
) -> None:
    on_cuda["has_begun"] = False
    applied = Applied(Plan({"matmul_precision": {}, "cudnn_benchmark": {}, "allocator": {}}))
    switched = applied.start("cuda")
    rows = applied.proofs()
    assert [(row["state"], row["why"]) for row in rows] == [
        ("no_effect", "the run used no CUDA device")
    ] * 3
    on_cuda.update(has_begun=True, kernels=(9, 1))
    assert {row["state"] for row in applied.proofs()} == {"applied"}
    on_cuda["error"] = 5e-7
    shown = {row["name"]: row for row in applied.proofs()}["matmul_precision"]
    switched.undo()
    assert shown["state"] == "no_effect" and "is 5e-07, as in float32" in shown["why"]


def test_what_torch_says_of_its_other_way_to_tf32_is_no_refusal(
    on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    get_precision = torch.get_float32_matmul_precision

    def warning() -> str:
        warnings.warn(
            "Please use the new API settings to control TF32 behavior, such as "
            "torch.backends.cuda.matmul.fp32_precision = 'ieee'.",
            stacklevel=2,
        )
        return get_precision()

    monkeypatch.setattr(torch, "get_float32_matmul_precision", warning)
    # In this suite a warning is an error.
    with pytest.raises(UserWarning):
        torch.get_float32_matmul_precision()
    assert proven("matmul_precision", on_cuda)[0] == "applied"


@pytest.mark.parametrize(
    ("kernels", "state"), [((9, 1), "applied"), ((2, 2), "no_effect"), ((0, 0), "no_effect")]
)
def test_a_search_for_algorithms_shows_in_the_kernels_of_the_first_convolution(
    on_cuda: dict[str, Any], kernels: tuple[int, int], state: str
) -> None:
    on_cuda["kernels"] = kernels
    assert proven("cudnn_benchmark", on_cuda)[0] == state
    assert torch.backends.cudnn.benchmark is False


def test_one_search_proves_it_however_often_it_is_asked(on_cuda: dict[str, Any]) -> None:
    on_cuda["kernels"] = 9, 1
    applied = Applied(Plan({"cudnn_benchmark": {}}))
    switched = applied.start("cuda")
    proofs = [applied.proofs()[0]["state"] for _ in range(3)]
    torch.backends.cudnn.benchmark = False
    assert applied.proofs()[0]["state"] == "no_effect"
    switched.undo()
    assert (proofs, on_cuda["searches"]) == (["applied"] * 3, 1)


def test_each_look_for_a_search_takes_a_shape_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[torch.Size] = []
    kernels = iter([1, 5, 2] * 2)

    class Profile:
        """Sees kernels, and the calls on the host that launch them."""

        def __init__(self, activities: Any) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> "Profile":
            return self

        def __exit__(self, *_: object) -> None:
            places = [SimpleNamespace(name=name) for name in ("CUDA", "CPU")]
            found = [SimpleNamespace(device_type=place) for place in places]
            events = found * next(kernels)
            self.events = lambda: events

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(
        torch.nn.functional, "conv2d", lambda images, weight: shapes.append(images.shape)
    )
    for _ in range(2):
        assert process_settings.kernels_of_convolutions("cpu") == (5, 2)
    assert len(shapes) == 4 and len(set(shapes)) == 2


@pytest.mark.parametrize("refused", [None, "Deterministic behavior was enabled, but"])
def test_determinism_that_comes_too_late_is_refused(
    on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch, refused: str | None
) -> None:
    monkeypatch.setattr(process_settings, "cuda_has_begun", lambda: True)
    monkeypatch.setattr(process_settings, "refused_product", lambda device: refused)
    state, why, _ = proven("deterministic", on_cuda)
    assert state == ("applied" if refused is None else "refused")
    assert (
        refused is None
        or "used cuBLAS before the environment variable CUBLAS_WORKSPACE_CONFIG was set" in why
    )
    assert not torch.are_deterministic_algorithms_enabled()


def test_no_search_beside_deterministic_algorithms(on_cuda: dict[str, Any]) -> None:
    applied = Applied(Plan({"deterministic": {}, "cudnn_benchmark": {}}))
    switched = applied.start("cuda")
    rows = {row["name"]: row for row in applied.proofs()}
    switched.undo()
    assert rows["deterministic"]["state"] == "applied"
    assert "rules out cudnn_benchmark" in rows["cudnn_benchmark"]["why"]


def test_a_script_finds_the_settings_in_its_environment() -> None:
    plan = {"allocator": {}, "host_allocator": {}, "deterministic": {}}
    config = Config(role="run", plan=plan)
    base = {VARIABLES[1]: "max_split_size_mb:64", "MALLOC_MMAP_MAX_": "7"}
    made = environment(config, base, trial=False)
    for name in VARIABLES:
        assert parse(made[name]) == {"expandable_segments": "True", "max_split_size_mb": "64"}
    assert made["MALLOC_MMAP_MAX_"] == "7" and made["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert base == {VARIABLES[1]: "max_split_size_mb:64", "MALLOC_MMAP_MAX_": "7"}


@pytest.mark.parametrize("variable", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_malloc_is_kept(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    applied = Applied(Plan({"host_allocator": {}}))
    applied.start("cpu").undo()
    (row,) = applied.proofs()
    assert row["state"] == "refused" and variable in row["why"]


def test_collections_are_between_steps_only_and_counted() -> None:
    options = get("garbage_collector").options({"every": 3})
    target = get("garbage_collector").apply(ProcessTarget({}), options)
    assert target.switch is not None
    undo = target.switch()
    (after_step,) = target.after_step
    for _ in range(8):
        after_step()
        # Enough garbage for many automatic collections.
        for _ in range(3000):
            cycle: list[Any] = []
            cycle.append(cycle)
    shown = get("garbage_collector").proof(target, options)
    assert shown.state == "applied" and "2 collections between 8 steps, 0 others" in shown.why
    for _ in range(9):
        gc.collect()
    shown = get("garbage_collector").proof(target, options)
    undo()
    assert shown.state == "no_effect" and "9 others" in shown.why


def test_a_forked_process_collects_again() -> None:
    target = get("garbage_collector").apply(ProcessTarget({}), get("garbage_collector").options({}))
    assert target.switch is not None
    undo = target.switch()
    target.after_step[0]()
    assert not gc.isenabled()
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    assert os.waitpid(child, 0)[1] == 0
    undo()
    assert gc.isenabled()


def test_what_a_host_cannot_do_is_said_before_anything_starts() -> None:
    cpu, gpu = TaskFacts(device="cpu"), TaskFacts(device="cuda", layers={"Conv2d": 1})
    amx = Host(platform="linux", features=("amx_bf16",))
    technique = get("matmul_precision")
    high, medium = (technique.options({"precision": word}) for word in ("high", "medium"))
    assert "amx_fp16" in (technique.why_not(cpu, amx, high) or "")
    assert technique.why_not(cpu, amx, medium) is None
    assert technique.why_not(gpu, GPU_HOST, high) is None
    for name in ("cudnn_benchmark", "allocator"):
        options = get(name).options({})
        assert get(name).why_not(gpu, GPU_HOST, options) is None
        assert "GPU" in (get(name).why_not(cpu, amx, options) or "")
    assert "cuda" in (get("host_allocator").why_not(gpu, GPU_HOST, None) or "")
    assert get("host_allocator").why_not(cpu, amx, None) is None


def test_deterministic_is_never_a_candidate() -> None:
    assert get("deterministic").candidates(TaskFacts(device="cuda"), GPU_HOST) == ()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["matmul_precision", "cudnn_benchmark", "allocator"])
def test_on_a_device_the_proof_sees_the_effect(name: str) -> None:
    # A block that another test has left is no segment that can grow.
    torch.cuda.empty_cache()
    applied = Applied(Plan({name: {}}))
    plain = process_settings.product_error("cuda")
    first, later = process_settings.kernels_of_convolutions("cuda")
    assert first == later > 0
    switched = applied.start("cuda")
    kept = torch.ones(2**26, device="cuda")
    (row,) = applied.proofs()
    switched.undo()
    assert row["state"] == "applied", row
    assert process_settings.product_error("cuda") == plain
    assert kept.is_cuda


@pytest.mark.parametrize("own", [None, "0"])
def test_devices_are_looked_for_without_beginning_to_use_them(
    monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    seen: list[str | None] = []
    monkeypatch.delenv(name, raising=False)
    if own is not None:
        monkeypatch.setenv(name, own)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ.get(name)))
    process_settings.has_cuda()
    # The script's own choice is there again.
    assert seen == ["1"] and os.environ.get(name) == own
