"""Starts a session once torch is imported, with the parts of the role given to the process."""

import atexit
import logging
import os
import random
import sys
import traceback
from pathlib import Path

import torch

from hotlap import compat
from hotlap.attach import seams
from hotlap.attach.apply import PlanInProcess
from hotlap.attach.live import LiveTechniques
from hotlap.attach.roles.guard import Guard
from hotlap.attach.roles.session import Part, Session
from hotlap.distributed.ending import let_tensors_go
from hotlap.plan import Plan
from hotlap.trial.channel import Channel
from hotlap.trial.protocol import EXIT_FAILED, Config

log = logging.getLogger("hotlap")


def _parts_of_run(session: Session) -> list[Part]:
    assert isinstance(session.plan, PlanInProcess)
    guard = Guard(session, session.plan)
    parts: list[Part] = [guard] if guard.has_work else []
    if session.config.options.get("record"):
        from hotlap.attach.roles.record import RecordLosses

        parts.append(RecordLosses(session))
    return parts


def _parts(session: Session, is_rank: bool) -> list[Part]:
    """Return what a session is made of, beside the plan that it applies."""
    if session.config.role == "follow" and not session.config.options.get("is_watched"):
        return []
    if session.config.role == "run":
        return _parts_of_run(session)
    from hotlap.attach.learning.watch import WatchLearning
    from hotlap.attach.roles.autocast import Autocast
    from hotlap.attach.roles.count import CountStep
    from hotlap.attach.roles.duel import Duel, go_on_as_duel
    from hotlap.attach.roles.follow import Pace
    from hotlap.attach.roles.losses import Losses
    from hotlap.attach.roles.memory import WatchMemory
    from hotlap.attach.roles.observe import Watch
    from hotlap.attach.roles.own_place import AtOwnPlace
    from hotlap.attach.roles.profile import ProfileSteps
    from hotlap.attach.roles.race import TakeTurns
    from hotlap.attach.roles.reference import Reference
    from hotlap.attach.roles.verify import Verify
    from hotlap.trace.recorder import Limits

    if session.config.role == "follow":
        watch = Watch(session, Limits())
        return [watch, Pace(session, watch)]
    if isinstance(session.plan, LiveTechniques):
        return [Duel(session, session.plan, session.config.options["age"])]
    if session.config.role == "race":
        return [TakeTurns(session)]
    if session.config.role == "observe":
        # Techniques would be switched in this rank alone.
        stays = session.config.options.get("stays", False) and not is_rank
        then = (lambda watch: go_on_as_duel(session, watch)) if stays else None
        watch = Watch(session, Limits.from_options(session.config.options), then)
        # Nothing that is not asked for listens while steps are timed.
        switches = session.config.options.get("autocast")
        parts: list[Part] = [watch, Autocast(session, watch)] if switches else [watch]
        if watch.wants_events:
            learning = WatchLearning(session, watch.recorder.events)
            watch.learning = learning.facts
            watch.recorder.at_looks = learning.look
            parts.append(learning)
        return parts
    if session.config.role == "seeds":
        watch = Watch(session, Limits(steps=session.config.options["steps"]))
        return [watch, Losses(watch)]
    watch = Watch(session, Limits())
    if session.config.role == "memory":
        autocast = Autocast(session, watch)
        return [watch, autocast, WatchMemory(session, watch, autocast)]
    if session.config.role == "profile":
        return [watch, ProfileSteps(session, watch)]
    kinds = {
        "verify": Verify,
        "reference": Reference,
        "own_place": AtOwnPlace,
        "count": CountStep,
    }
    return [watch, kinds[session.config.role](session, watch)]


def start(config: Config, channel: Channel, *, is_rank: bool = False) -> Session | None:
    """Begin the session. A run that cannot begin goes on as the plain script, and says so.

    Args:
        config: what the process was told.
        channel: to whoever started it.
        is_rank: the process is one of several ranks.

    Returns:
        None if it could not begin.
    """
    try:
        return _start(config, channel, is_rank)
    except Exception as error:
        seams.go_inert()
        channel.send("failed", error=str(error), traceback=traceback.format_exc())
        if config.role != "run":
            os._exit(EXIT_FAILED)
        print(f"hotlap: the plan could not be applied, running plain: {error}", file=sys.stderr)  # noqa: T201
        return None


def _start(config: Config, channel: Channel, is_rank: bool) -> Session:
    # A script that logs to its own standard output must not find our lines there.
    log.propagate = False
    log.addHandler(logging.NullHandler())
    plan = Plan(config.plan)
    absent = compat.missing_names()
    if absent:
        names = ", ".join(f"{name.module}.{name.path}" for name in absent)
        raise RuntimeError(f"this torch ({torch.__version__}) lacks {names}")
    if config.inject_seed is not None:
        _seed(config.inject_seed + config.shift_seeds)
    if config.shift_seeds:
        from hotlap.attach.seeds import shift_seeds

        shift_seeds(config.shift_seeds)
    before = None
    if config.role == "verify" and config.inject_seed is None:
        from hotlap.trial.update_follower import random_digests

        # Before techniques from outside are imported: they might seed a generator.
        before = random_digests()
    if config.role == "duel":
        in_process = LiveTechniques(config.options["plans"], extra=config.techniques)
    else:
        in_process = PlanInProcess(
            plan,
            extra=config.techniques,
            fill_ahead=config.fill_ahead,
            is_rank=is_rank,
            meeting=None if config.address is None else Path(f"{config.address}-ranks"),
        )
    session = Session(config, channel, in_process)
    session.random_before = before
    session.play(*_parts(session, is_rank))
    seams.install(session)
    in_process.start()
    session.bind()
    if is_rank:
        atexit.register(let_tensors_go)
    atexit.register(session.finish)
    channel.send("torch", version=torch.__version__, threads=torch.get_num_threads())
    return session


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    import numpy

    numpy.random.seed(seed)
