"""A script that fixes its seed is trained from another one."""

import subprocess
import sys

SCRIPT = """
import random
import numpy, torch
from torch import manual_seed

def numbers():
    generator = numpy.random.default_rng(9)
    return [torch.rand(1).item(), random.random(), numpy.random.rand(), generator.random()]

def seeded(seed):
    torch.manual_seed(seed), random.seed(seed), numpy.random.seed(seed)
    return numbers()

plain = [seeded(seed) for seed in (3, 5)]
other = numpy.random.default_rng(11).random()
from hotlap.attach.seeds import shift_seeds
shift_seeds(2)
assert plain[0] != plain[1]
assert seeded(3) == [*plain[1][:3], other], "seeds are moved by two, once"
assert seeded(3) == seeded(3)
torch.manual_seed(3)
assert torch.initial_seed() == 5
random.seed("a word")
random.seed()
numpy.random.seed(2**32 - 1)
"""


def test_every_seed_that_a_script_sets_is_another_one() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
