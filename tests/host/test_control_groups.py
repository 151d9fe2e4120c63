"""Limits of control groups, on trees that are made up here: versions 1 and 2, nested, hidden."""

from pathlib import Path

from hotlap.host import control_groups
from hotlap.host.memory import memory

MIB = 2**20
V1 = "31 23 0:35 {root} {top}/memory rw,relatime shared:7 - cgroup cgroup rw,memory"
V1_CPU = "32 23 0:36 {root} {top}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V2 = "31 23 0:35 {root} {top} rw,relatime - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = "22 27 0:21 / /proc rw - proc proc rw\n27 1 254:0 / / rw - ext4 /dev/vda rw,discard\n"


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def process(tmp_path: Path, mount: str, own: str, root: str = "/") -> Path:
    """Return a folder that says what /proc says of a process in such groups."""
    line = mount.format(root=root, top=str(tmp_path / "cgroup").replace(" ", r"\040"))
    group(tmp_path / "proc", cgroup=own, mountinfo=OTHERS + line)
    return tmp_path / "proc"


def test_the_tightest_quota_of_version_2_groups_holds(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    group(top, cpu__max="max 100000")
    group(top / "jobs", cpu__max="150000 100000")
    group(top / "jobs/mine", cpu__max="400000 100000")
    assert control_groups.cpu_quota(process(tmp_path, V2, "0::/jobs/mine")) == 1.5
    assert control_groups.cpu_quota(process(tmp_path, V2, "0::/")) is None
    assert control_groups.cpu_quota(process(tmp_path, V2, "0::/not/mounted")) is None


def test_the_quota_of_version_1_groups_holds(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup/cpu,cpuacct"
    group(folder, cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    proc = process(tmp_path, V1_CPU, "4:memory:/\n3:cpu,cpuacct:/docker/0123", "/docker/0123")
    assert control_groups.cpu_quota(proc) == 2.5
    group(folder, cpu__cfs_quota_us="-1")
    assert control_groups.cpu_quota(proc) is None


def test_a_group_of_version_2_limits_memory_and_its_cache_is_free(tmp_path: Path) -> None:
    stat = f"anon 1\nfile_mapped {8 * MIB}\ninactive_file {16 * MIB}\nactive_file {24 * MIB}"
    group(
        tmp_path / "cgroup",
        memory__max=64 * MIB,
        memory__high="max",
        memory__current=48 * MIB,
        memory__stat=f"{stat}\nslab_reclaimable {MIB}",
    )
    proc = process(tmp_path, V2, "0::/")
    # 48 are used; of the 40 of files 8 are mapped, and 1 of the kernel's own is given back.
    assert memory(proc) == (64 * MIB, (64 - 48 + 32 + 1) * MIB)
    group(tmp_path / "cgroup", memory__high=50 * MIB)
    assert memory(proc) == (50 * MIB, (50 - 48 + 32 + 1) * MIB)
    group(tmp_path / "cgroup", memory__max="max", memory__high="max")
    assert memory(proc)[0] > 64 * MIB


def test_a_group_of_version_1_limits_memory_and_its_cache_is_free(tmp_path: Path) -> None:
    inner = tmp_path / "cgroup/memory/jobs"
    group(
        inner,
        memory__limit_in_bytes=64 * MIB,
        memory__usage_in_bytes=48 * MIB,
        memory__stat=f"inactive_file {MIB}\ntotal_inactive_file {16 * MIB}",
    )
    proc = process(tmp_path, V1, "4:memory:/jobs")
    assert memory(proc) == (64 * MIB, 32 * MIB)
    group(inner, memory__limit_in_bytes=2**63 - 4096)
    assert memory(proc)[0] > 64 * MIB


def test_the_tightest_of_all_groups_on_the_way_up_holds(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    group(top / "a", memory__max=100 * MIB, memory__current=90 * MIB)
    group(top / "a/b", memory__max=50 * MIB, memory__current=10 * MIB)
    group(top / "a/b/c", memory__max=80 * MIB, memory__current=5 * MIB)
    group(top / "other", memory__max=MIB, memory__current=MIB)
    # The smallest limit is one group's, the least that is left another's.
    assert memory(process(tmp_path, V2, "0::/a/b/c")) == (50 * MIB, 10 * MIB)
    group(top / "a", memory__current=20 * MIB)
    assert memory(process(tmp_path, V2, "0::/a/b/c"))[1] == 40 * MIB


def test_a_container_sees_its_own_group_as_the_root_and_groups_below(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    group(top / "memory", memory__limit_in_bytes=80 * MIB, memory__usage_in_bytes=0)
    group(top / "memory/sub", memory__limit_in_bytes=60 * MIB, memory__usage_in_bytes=0)
    proc = process(tmp_path, V1, "4:memory:/docker/01/sub", root="/docker/01")
    assert memory(proc)[0] == 60 * MIB
    proc = process(tmp_path, V1, "4:memory:/docker/01", root="/docker/01")
    assert memory(proc)[0] == 80 * MIB
    # A group of its own as the root of all names, and a process that lies outside of it.
    proc = process(tmp_path, V1, "4:memory:/../elsewhere")
    assert memory(proc)[0] == 80 * MIB


def test_a_limit_above_what_is_seen_is_in_version_1s_own_words(tmp_path: Path) -> None:
    group(
        tmp_path / "cgroup/memory",
        memory__limit_in_bytes=2**63 - 4096,
        memory__usage_in_bytes=10 * MIB,
        memory__stat=f"hierarchical_memory_limit {40 * MIB}",
    )
    assert memory(process(tmp_path, V1, "4:memory:/")) == (40 * MIB, 30 * MIB)


def test_a_path_with_spaces_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "with a space"
    group(folder / "cgroup", memory__max=40 * MIB, memory__current=0)
    assert memory(process(folder, V2, "0::/"))[0] == 40 * MIB


def test_kills_for_lack_of_memory_are_counted(tmp_path: Path) -> None:
    group(tmp_path / "cgroup", memory__events="oom 3\noom_kill 2\noom_group_kill 0")
    assert control_groups.out_of_memory_kills(process(tmp_path, V2, "0::/")) == 2
    group(tmp_path / "cgroup/memory", memory__oom_control="under_oom 0\noom_kill 4")
    assert control_groups.out_of_memory_kills(process(tmp_path, V1, "4:memory:/")) == 4


def test_without_any_group_the_machine_is_the_limit(tmp_path: Path) -> None:
    total, available = memory(tmp_path)
    assert 0 < available <= total
