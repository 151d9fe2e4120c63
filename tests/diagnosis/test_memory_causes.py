"""Scripts that look like a memory problem and are none, each beside one that is; and padding."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.diagnosis.test_memory import HEAD, LOOP, SMALL, TAIL, diagnosed

PADDED = """
from torch.nn.utils.rnn import pad_sequence

texts = [torch.randint(1, 100, (int(n),)) for n in torch.randint(4, 97, (640,))]

def collate(samples):
    tokens = pad_sequence(samples, batch_first=True)
    return nn.functional.pad(tokens, (0, 128 - tokens.shape[1]))

loader = DataLoader(texts, batch_size=32, shuffle=True, collate_fn=collate)
model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for tokens in loader:
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), ignore_index=0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BUCKETED = (
    PADDED.replace("(640,))]", "(640,)).sort().values]")
    .replace(
        "    return nn.functional.pad(tokens, (0, 128 - tokens.shape[1]))", "    return tokens"
    )
    .replace("shuffle=True", "shuffle=False")
)


def rules_of(folder: Path, text: str) -> list[str]:
    return [each["rule"] for each in diagnosed(folder, text)["findings"]]


@pytest.mark.slow
def test_padding_is_found_and_not_where_batches_hold_similar_lengths(tmp_path: Path) -> None:
    found = diagnosed(tmp_path, PADDED)
    (finding,) = [each for each in found["findings"] if each["rule"] == "wasted_padding"]
    line = (HEAD + PADDED).splitlines().index("for tokens in loader:") + 1
    assert (finding["where"], finding["holder"]) == (f"train.py:{line}", "batch")
    assert 0.4 < finding["cost_bytes"] / found["memory"]["peak_bytes"] < 0.7
    assert "not to 128" in finding["remedy"]
    assert "wasted_padding" not in rules_of(tmp_path, BUCKETED)


KEEP = "    kept.append(outputs.detach())\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("kept = collections.deque(maxlen=50)\n", "", []),
        ("kept = []\n", "    if len(kept) > 5:\n        kept.pop(0)\n", []),
        ("kept = []\n", "    kept = kept[-64:]\n", ["low"]),
        ("kept = []\n", "    if len(kept) > 64:\n        kept.pop(0)\n", ["low"]),
        ("kept = []\n", "", ["high"]),
    ],
)
def test_a_bounded_buffer_is_no_growth(
    before: str, after: str, expected: list[str], tmp_path: Path
) -> None:
    text = SMALL + TAIL + "import collections\n" + before + LOOP + KEEP + after
    found = diagnosed(tmp_path, text)["findings"]
    assert [each["confidence"] for each in found] == expected, found
    assert all("observed steps" in each["evidence"] for each in found)


WIDE = "    scores = outputs.detach().repeat(1, 6)\n"
USED = LOOP.replace(
    "    loss.backward()", "    gap = None if last is None else last.sum()\n    loss.backward()"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (LOOP + WIDE, "`del scores`"),
        ("last = None" + USED + WIDE + "    last = scores\n    del scores\n", None),
        (LOOP + WIDE + "print(scores.sum())\n", "after the loop"),
    ],
)
def test_del_is_advised_only_where_it_breaks_nothing(
    text: str, advice: str | None, tmp_path: Path
) -> None:
    found = diagnosed(tmp_path, SMALL + TAIL + text)["findings"]
    assert len(found) == (advice is not None), found
    assert all(each["rule"] == "loop_variable" and advice in each["remedy"] for each in found)


LOSSES = "    losses.append(loss.detach())\n"


@pytest.mark.slow
def test_a_detached_loss_that_keeps_the_batchs_storage_is_found(tmp_path: Path) -> None:
    text = SMALL + TAIL + "losses = []" + LOOP + LOSSES
    (finding,) = diagnosed(tmp_path, text)["findings"]
    assert (finding["rule"], finding["holder"]) == ("retained_loss", "losses")
    assert finding["cost_bytes"] == pytest.approx(64 * 512 * 4, rel=0.01)
    cloned = text.replace(".detach())", ".detach().clone())")
    assert diagnosed(tmp_path, cloned)["findings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "sequences"])
def test_examples_have_padding_only_where_sequences_are_padded(name: str, root: Path) -> None:
    import json
    import subprocess

    folder = root / "examples" / name
    command = [sys.executable, "-m", "hotlap", "diagnose", "--memory", "--json"]
    # No longer: what autocast would do is not asked.
    command += ["--budget", "20s", "plain.py"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    padding = [each for each in found if each["rule"] == "wasted_padding"]
    assert len(padding) == (name == "sequences"), found
