"""Imports point down only, and siblings do not import each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LAYERS = (
    ("cli",),
    ("demo", "ray"),
    ("report",),
    ("diagnosis", "tuning", "search"),
    ("lab",),
    ("engine", "attach"),
    ("trial",),
    ("techniques",),
    ("feed", "checkpoint", "track", "rules", "failures"),
    ("trace",),
    ("distributed",),
    ("kernels", "device"),
    ("recipe",),
    ("task",),
    ("plan", "host", "sequences", "schedules"),
    ("nested", "rng", "usercode", "compat", "recipe_detection"),
    ("start_folder",),
    ("errors",),
)
"""From top to bottom."""
NEVER = {("lab", "engine"), ("lab", "attach")}
"""Which part is above another and does not import it: it starts processes that do."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
MAY_IMPORT_ROOT = {"cli", "__main__"}
"""Parts that may import `hotlap` itself, which imports all that is public."""


def modules(source: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: set[str]) -> Iterator[tuple[str, int]]:
    """Give the modules of hotlap that a file imports, late and by name too, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "hotlap":
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            module = node.module or ""
            if module.partition(".")[0] != "hotlap":
                continue
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield (inner if inner in known else module), node.lineno
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = _text_of(node.args[0]).partition(":")[0].rstrip(".")
            if function in ("import_module", "__import__") and name.partition(".")[0] == "hotlap":
                yield name, node.lineno


def _text_of(node: ast.expr) -> str:
    """Return a text, or what stands before the first value of a formatted one."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value if is_text else ""


def part(module: str) -> str:
    """Return the part of hotlap that a module belongs to, empty for hotlap itself."""
    return module.split(".")[1] if "." in module else ""


def test_every_part_of_hotlap_has_a_layer(source: Path) -> None:
    parts = {part(module) for module in modules(source)} - {"", "__main__", "_examples"}
    assert parts <= LEVEL.keys(), f"not in LAYERS: {sorted(parts - LEVEL.keys())}"


def test_imports_point_down_and_siblings_do_not_import_each_other(source: Path) -> None:
    known = modules(source)
    wrong = []
    for module, path in known.items():
        mine = part(module)
        for other, line in imports(path, set(known)):
            theirs = part(other)
            if mine == "" or mine == theirs:
                continue
            if theirs == "":
                allowed = mine in MAY_IMPORT_ROOT
            else:
                allowed = mine == "__main__" or LEVEL[mine] < LEVEL[theirs]
                allowed = allowed and (mine, theirs) not in NEVER
            if not allowed:
                wrong.append(f"{path}:{line}: {module} imports {other}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "import hotlap.attach.hook",
        "from hotlap.attach import hook",
        "    import hotlap.attach.hook as late",
        "importlib.import_module('hotlap.attach.hook')",
        "import_module('hotlap.attach')",
        "importlib.import_module(f'hotlap.attach.{name}')",
        "__import__('hotlap.attach.hook:Hook')",
    ],
)
def test_an_import_is_seen_however_it_is_written(line: str, tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(f"def f(name):\n    pass\n{line}\n" if line[0] != " " else f"def f():\n{line}")
    ((module, _),) = imports(path, {"hotlap.attach.hook"})
    assert part(module) == "attach"


def room(module: str) -> str:
    """Return the room of a part that a module lies in: a folder, or the module itself."""
    return ".".join(module.split(".")[:3])


def circles(graph: dict[str, set[str]]) -> Iterator[str]:
    """Give the circles of a graph that a walk through it comes upon."""
    done: set[str] = set()

    def visit(node: str, trail: tuple[str, ...]) -> Iterator[str]:
        if node in trail:
            yield " -> ".join((*trail[trail.index(node) :], node))
        elif node not in done:
            for other in sorted(graph.get(node, ())):
                yield from visit(other, (*trail, node))
            done.add(node)

    for node in sorted(graph):
        yield from visit(node, ())


def rooms_of(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph of the rooms that a graph of modules lies in."""
    found: dict[str, set[str]] = {}
    for module, others in graph.items():
        mine = found.setdefault(room(module), set())
        mine |= {room(other) for other in others} - {room(module)}
    return found


def graph_of(source: Path) -> dict[str, set[str]]:
    """Return whom each module imports, late or by a name in a text, at any time."""
    known = modules(source)
    graph = {}
    for module, path in known.items():
        named = {name for name, _ in imports(path, set(known))}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                # As in `module:NAME`.
                named |= {node.value.partition(":")[0]} & known.keys()
        graph[module] = named - {module, "hotlap"}
    return graph


def test_no_two_rooms_import_each_other_in_a_circle(source: Path) -> None:
    graph = graph_of(source)
    assert not list(circles(rooms_of(graph)))
    # The negative control: one line in the wrong room.
    graph["hotlap.feed.samples.order"].add("hotlap.feed.sources.source")
    assert any("feed.sources" in circle for circle in circles(rooms_of(graph)))


def test_no_two_modules_import_each_other_in_a_circle(source: Path) -> None:
    graph = graph_of(source)
    assert not list(circles(graph))
    # The negative control: late imports count.
    assert "hotlap.attach.roles.race" in graph["hotlap.attach.start"]
    graph["hotlap.attach.roles.race"].add("hotlap.attach.start")
    assert list(circles(graph))


def test_no_import_is_hidden_from_the_running_program(source: Path) -> None:
    hidden = [
        str(path)
        for path in source.rglob("*.py")
        # The root names for type checkers what it finds only when it is asked for.
        if path != source / "__init__.py" and "TYPE_CHECKING" in path.read_text()
    ]
    assert not hidden, "TYPE_CHECKING only hides circles: " + ", ".join(hidden)
