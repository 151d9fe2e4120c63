"""`resident` and `optimizer`, which count how often they are switched."""

from dataclasses import replace
from typing import Any

from hotlap.techniques import Proof, Technique, get


def _counted(technique: Technique) -> Technique:
    live, switches = technique.live, [0]
    assert live is not None

    def count(switch: Any) -> Any:
        def counted(target: Any, options: Any) -> None:
            switches[0] += 1
            switch(target, options)

        return counted

    def proof(target: Any, options: Any) -> Proof:
        return Proof(technique.proof(target, options).state, str(switches[0]))

    own = replace(live, on=count(live.on), off=count(live.off))
    return replace(technique, name=f"counted_{technique.name}", live=own, proof=proof)


RESIDENT = _counted(get("resident"))
OPTIMIZER = _counted(get("optimizer"))
