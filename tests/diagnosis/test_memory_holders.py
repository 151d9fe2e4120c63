"""Scripts whose memory grows in something that no variable of theirs leads to directly."""

from pathlib import Path

import pytest

from tests.diagnosis.memory_runs import diagnosed as diagnosed_as_it_is
from tests.diagnosis.test_memory import HEAD, LOOP, SMALL, TAIL, diagnosed

OUTPUT = 64 * 512 * 4
CLOSURE = """
def make_logger():
    kept = []

    def log(value):
        kept.append(value)  # here

    return log

log = make_logger()
"""
DEFAULT = """
def log(value, kept=[]):
    kept.append(value)  # here
"""
SLOTS = """
class Meter:
    __slots__ = ("values",)

    def __init__(self):
        self.values = []

    def log(self, value):
        self.values.append(value)  # here

meter = Meter()
log = meter.log
"""
# The other class has an attribute of the same name, which stays small.
CLASS = """
class Losses:
    def __init__(self):
        self.values = []

    def log(self, value):
        self.values.append(value.sum().item())

class Meter:
    values = []

    def log(self, value):
        Meter.values.append(value)  # here

losses = Losses()
meter = Meter()

def log(value):
    meter.log(value)
    losses.log(value)
"""
CACHE = """
import functools

@functools.lru_cache(maxsize=None)  # here
def scale(value):
    return value * 2

log = scale
"""
GENERATOR = """
def collect():
    seen = []
    while True:
        seen.append((yield))  # here

sink = collect()
next(sink)
log = sink.send
"""
DEQUE = """
import collections

kept = collections.deque()

def log(value):
    kept.append(value)  # here
"""
OTHER_FILE = """
class Other:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(0)

class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value)  # here
"""
LOG = LOOP + "    log(outputs.detach())\n"
REBOUND = "    losses = losses + [loss]  # here\n"
HOLDERS = {
    # Name: (what defines `log`, what is wrong in it, what is right, bytes, name of the holder).
    "closure": (CLOSURE, "append(value)", "append(value.sum().item())", OUTPUT, "kept"),
    "default": (DEFAULT, "append(value)", "append(value.sum().item())", OUTPUT, "kept"),
    "slots": (SLOTS, "append(value)", "append(value.sum().item())", OUTPUT, "meter.values"),
    "class": (CLASS, "append(value)", "append(value[0, 0].item())", OUTPUT, "Meter.values"),
    # The argument is kept as well.
    "cache": (CACHE, "maxsize=None", "maxsize=4", 2 * OUTPUT, "scale"),
    "generator": (GENERATOR, "(yield)", "(yield).sum().item()", OUTPUT, "seen"),
    "deque": (DEQUE, "deque()", "deque(maxlen=4)", OUTPUT, "kept"),
}


def check_is_found(folder: Path, script: str, size: int, holder: str) -> None:
    (found,) = diagnosed(folder, script)["findings"]
    (line,) = [n for n, row in enumerate((HEAD + script).splitlines(), 1) if "# here" in row]
    assert (found["where"], found["holder"]) == (f"train.py:{line}", holder)
    assert found["cost_bytes"] == pytest.approx(size, rel=0.1)
    assert (found["grows"], found["confidence"]) == (True, "high")


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDERS)
def test_what_keeps_memory_is_found_by_its_line_and_its_name(name: str, tmp_path: Path) -> None:
    text, _, _, size, holder = HOLDERS[name]
    check_is_found(tmp_path, SMALL + TAIL + text + LOG, size, holder)


@pytest.mark.slow
def test_a_list_that_is_made_again_in_each_step_is_found(tmp_path: Path) -> None:
    check_is_found(tmp_path, SMALL + TAIL + "losses = []" + LOOP + REBOUND, OUTPUT, "losses")


@pytest.mark.slow
def test_nothing_is_found_where_all_of_them_are_right(tmp_path: Path) -> None:
    texts = []
    for text, wrong, right, *_ in HOLDERS.values():
        assert wrong in text
        texts.append(text.replace(wrong, right) + "logs.append(log)\n")
    script = SMALL + TAIL + "steps, logs = [], []\n" + "".join(texts) + LOOP
    script += "    for log in logs:\n        log(outputs.detach())\n"
    script += REBOUND.replace("losses", "steps").replace("[loss]", "[loss.item()]")
    assert diagnosed(tmp_path, script)["findings"] == []


@pytest.mark.slow
def test_the_line_may_lie_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "meters.py").write_text(OTHER_FILE)
    text = SMALL + TAIL + "import meters\nmeter = meters.Meter()\n" + LOOP
    (found,) = diagnosed(tmp_path, text + "    meter.update(outputs.detach())\n")["findings"]
    (line,) = [n for n, row in enumerate(OTHER_FILE.splitlines(), 1) if "# here" in row]
    assert (found["where"], found["holder"]) == (f"meters.py:{line}", "meter.values")


IMAGES = """
class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.cache = {cache}

    def __len__(self):
        return 1280

    def __getitem__(self, index):
        if {missing}:
            self.cache[index] = torch.randn(64), torch.randn(512)  # here
        return self.cache[index]

loader = DataLoader(Images(), batch_size=64, shuffle=True)
"""
KEPT = "self.cache[index] = torch.randn(64), torch.randn(512)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cache", "missing"),
    [("{}", "index not in self.cache"), ("[None] * 1280", "self.cache[index] is None")],
)
def test_the_cache_of_a_dataset_is_no_leak(cache: str, missing: str, tmp_path: Path) -> None:
    script = IMAGES.format(cache=cache, missing=missing) + SMALL + TAIL + LOOP
    (found,) = diagnosed(tmp_path, script)["findings"]
    (line,) = [n for n, row in enumerate((HEAD + script).splitlines(), 1) if "# here" in row]
    assert (found["rule"], found["grows"]) == ("filling_cache", False)
    assert (found["where"], found["holder"]) == (f"train.py:{line}", "loader.dataset.cache")
    assert found["cost_bytes"] == pytest.approx(1280 * (64 + 512) * 4, rel=0.1)
    assert "a cache, not a leak" in found["evidence"]


@pytest.mark.slow
def test_a_cache_that_was_filled_meanwhile_is_no_leak_either(tmp_path: Path) -> None:
    text = IMAGES.format(cache="{}", missing="index not in self.cache").replace("1280", "256")
    epochs = LOOP.replace("\n", "\n    ").replace("\n    for", "\nfor _ in range(9):\n    for", 1)
    assert diagnosed(tmp_path, text + SMALL + TAIL + epochs)["findings"] == []
    right = text.replace(KEPT, KEPT.replace("self.cache[index] =", "return"))
    assert right != text and diagnosed(tmp_path, right + SMALL + TAIL + LOOP)["findings"] == []


RECURRENT = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
texts = [torch.randint(0, 1000, (int(n),)) for n in torch.randint(4, 97, (640,))]
labels = torch.randint(0, 2, (640,))

def collate(samples):
    tokens = [text for text, _ in samples]
    lengths = torch.tensor([len(text) for text in tokens])
    padded = pad_sequence(tokens, batch_first=True)
    padded = nn.functional.pad(padded, (0, 128 - padded.shape[1]))
    return padded, lengths, torch.stack([label for _, label in samples])

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.rnn = nn.LSTM(64, 128, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, tokens, lengths):
        outputs, _ = self.rnn(self.embedding(tokens))
        return self.head(outputs[torch.arange(len(tokens)), lengths - 1])

loader = DataLoader(list(zip(texts, labels)), batch_size=32, shuffle=True, collate_fn=collate)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for tokens, lengths, targets in loader:
    loss = nn.functional.cross_entropy(model(tokens, lengths), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PACKED = RECURRENT.replace(
    "        outputs, _ = self.rnn(self.embedding(tokens))\n",
    "        packed = pack_padded_sequence(\n"
    "            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False\n"
    "        )\n"
    "        outputs, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)\n",
)
WIDER = "    padded = nn.functional.pad(padded, (0, 128 - padded.shape[1]))\n"


def of_similar_lengths(text: str) -> str:
    shuffled = text.replace(WIDER, "").replace("(640,))]", "(640,)).sort().values]")
    return shuffled.replace("shuffle=True", "shuffle=False")


@pytest.mark.slow
@pytest.mark.parametrize(("text", "least", "most"), [(RECURRENT, 0.5, 0.7), (PACKED, 0.05, 0.2)])
def test_padding_of_a_recurrent_network_is_what_would_be_saved(
    text: str, least: float, most: float, tmp_path: Path
) -> None:
    found = diagnosed_as_it_is(tmp_path, text, budget="8s")
    (finding,) = found["findings"]
    line = text.splitlines().index("for tokens, lengths, targets in loader:") + 1
    assert (finding["rule"], finding["where"]) == ("wasted_padding", f"train.py:{line}")
    assert (finding["holder"], "as `batch[1]` says" in finding["evidence"]) == ("batch[0]", True)
    # What goes through a packed sequence has no padding.
    assert least < finding["cost_bytes"] / found["memory"]["peak_bytes"] < most
    if text is RECURRENT:
        # All sequences are as long as their mean, and the batch.
        equal = text.replace(WIDER, "").replace("randint(4, 97, (640,))", "full((640,), 50)")
        bare = diagnosed_as_it_is(tmp_path, equal, budget="8s")
        assert bare["findings"] == []
        saved = found["memory"]["peak_bytes"] - bare["memory"]["peak_bytes"]
        assert finding["cost_bytes"] == pytest.approx(saved, rel=0.1)


@pytest.mark.slow
def test_sorted_by_length_a_recurrent_network_has_no_padding(tmp_path: Path) -> None:
    right = diagnosed_as_it_is(tmp_path, of_similar_lengths(RECURRENT), budget="8s")
    assert right["findings"] == []
