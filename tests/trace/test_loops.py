"""Loops of Python: over parameters, over layers, or over what could be computed at once."""

import linecache
from pathlib import Path

import pytest

from hotlap.trace.source.loops import loop_at, walk_of_objects_at
from hotlap.trace.spots import outermost_statement

TEXT = """\
def forward(self, x):
    for layer in self.layers:
        x = layer(x)
    for i, conv in enumerate(self.filters):
        y = conv(x[:, i])
    for t in range(x.size(1)):
        h = self.cell(x[:, t], h)
    z = [self.one(row) for row in self.cut(x)]
    w = sum(p.sum() for p in net.parameters())
    for a, b in zip(self.left, self.right):
        x = a(x) + b(x)
    while x.norm() > 1:
        x = x / 2
    for i in range(len(self.blocks)):
        x = self.blocks[i](x)
    for i in range(len(blocks)):
        x = blocks[i](x) + 1
    for _ in range(self.rounds):
        h = h + self.update(self.adjacent @ h)
    for block in blocks:
        x = block(x) + 2
    for t in range(9):
        h = self.cell(x.select(1, t), h)
    for row in x.unbind(0):
        z = self.one(row) + z
    return x

for epoch in range(3):
    for batch in make(loader):
        table = {}
        for row in batch:
            table[row] = 1
        loss = net(batch)
        optimizer.step()
        if epoch % 2:
            for row in batch:
                print(row)
    evaluate()

def losses(batch):
    for part in batch.chunk(4):
        loss = net(part).mean()
        for row in part:
            loss = loss + row.mean()
        yield loss / 4
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TEXT)
    linecache.checkcache()
    return str(path)


def line_of(text: str) -> int:
    return [line.strip() for line in TEXT.splitlines()].index(text) + 1


@pytest.mark.parametrize(
    ("line", "over", "text"),
    [
        ("x = layer(x)", "modules", "for layer in self.layers"),
        ("y = conv(x[:, i])", "elements", "for (i, conv) in enumerate(self.filters)"),
        ("h = self.cell(x[:, t], h)", "elements", "for t in range(x.size(1))"),
        ("z = [self.one(row) for row in self.cut(x)]", "elements", "for row in self.cut(x)"),
        ("w = sum(p.sum() for p in net.parameters())", "parameters", "for p in net.parameters()"),
        ("x = a(x) + b(x)", "modules", "for (a, b) in zip(self.left, self.right)"),
        ("x = x / 2", "elements", "while x.norm() > 1"),
        ("x = self.blocks[i](x)", "modules", "for i in range(len(self.blocks))"),
        ("x = blocks[i](x) + 1", "modules", "for i in range(len(blocks))"),
        ("h = h + self.update(self.adjacent @ h)", "modules", "for _ in range(self.rounds)"),
        ("x = block(x) + 2", "modules", "for block in blocks"),
        ("h = self.cell(x.select(1, t), h)", "elements", "for t in range(9)"),
        ("z = self.one(row) + z", "elements", "for row in x.unbind(0)"),
    ],
)
def test_what_a_loop_is_over(file: str, line: str, over: str, text: str) -> None:
    found = loop_at(file, line_of(line))
    assert found is not None
    assert (found.over, found.text) == (over, text)


def test_a_line_without_a_loop_around_it_is_in_none(file: str) -> None:
    assert loop_at(file, line_of("return x")) is None


def test_the_loop_of_the_training_itself_does_not_count(file: str) -> None:
    step = frozenset({line_of("optimizer.step()")})
    assert loop_at(file, line_of("loss = net(batch)"), step) is None
    inner = loop_at(file, line_of("table[row] = 1"), step)
    assert inner is not None and inner.text == "for row in batch"


def test_a_loop_that_gives_each_of_its_results_away_does_not_count(file: str) -> None:
    # They are sent backward one by one.
    assert loop_at(file, line_of("loss = net(part).mean()")) is None
    inner = loop_at(file, line_of("loss = loss + row.mean()"))
    assert inner is not None and inner.text == "for row in part"


def test_a_statement_is_as_large_as_it_can_be_without_the_update(file: str) -> None:
    step = frozenset({line_of("optimizer.step()")})
    whole = {
        "for batch in make(loader):": "for batch in make(loader):",
        "table[row] = 1": "for row in batch:",
        "print(row)": "if epoch % 2:",
        "evaluate()": "evaluate()",
        "loss = net(batch)": "loss = net(batch)",
    }
    for line, statement in whole.items():
        assert outermost_statement(file, line_of(line), step) == line_of(statement)
    assert outermost_statement(file, line_of("optimizer.step()"), step) is None
    # With the lines of a backward, no loop over micro-batches is one statement.
    both = step | {line_of("table[row] = 1")}
    assert outermost_statement(file, line_of("table[row] = 1") - 1, both) == line_of(
        "for row in batch:"
    )


def test_what_a_loop_goes_over_is_not_in_it(file: str) -> None:
    line = line_of("z = [self.one(row) for row in self.cut(x)]")
    text = TEXT.splitlines()[line - 1]
    assert loop_at(file, line, column=text.index("self.one")) is not None
    assert loop_at(file, line, column=text.index("self.cut")) is None


WALKS = """\
def count():
    kinds = set()
    for each in gc.get_objects():
        if torch.is_tensor(each):
            kinds.add(each.dtype)
    return kinds, 1

def size():
    objects = gc.get_objects()
    largest = max(objects, key=len)
    return sum(
        each.nbytes for each in
        gc.get_objects() if torch.is_tensor(each)
    )

def other():
    names = [each.name for each in store.get_objects()]
    return names
"""


def test_lines_of_a_walk_over_all_objects_belong_to_the_line_that_asks_for_them(
    tmp_path: Path,
) -> None:
    file = tmp_path / "walks.py"
    file.write_text(WALKS)
    found = {line: walk_of_objects_at(str(file), line) for line in range(1, 19)}
    walks = {3: 3, 4: 3, 5: 3, 6: 3, 9: 9, 11: 13, 12: 13, 13: 13, 14: 13}
    assert found == {line: walks.get(line) for line in range(1, 19)}
