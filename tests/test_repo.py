"""Ratchets: what the repository as a whole must keep to. A limit here may be tightened, never loosened."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from augury.config import entries

ROOT = Path(__file__).parent.parent
FOLDERS = {".ci", "deploy", "docs", "gateway", "kvcache_svc", "proto", "scheduler_svc", "tests", "worker_svc"}
PROTOS = [f"augury/v1/{name}.proto" for name in ("common", "kvcache", "scheduler", "worker")]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
MAX_TYPE_IGNORES = 5
MAX_NOQAS = 8

BROAD = {"Exception", "BaseException"}
MAY_CATCH_ALL = {"proto/augury/rpc.py"}

# Put together so that this file does not hold what it forbids.
FORBIDDEN = {
    "unfinished work": r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b",
    "a path of one machine": r"(?<![\w.])/(?:work|root)/",
    "a private package registry": r"https?://[^\s/]*(?:artifactory|nexus|mirror|\.internal\b)",
}

NOT_SETTINGS = {"json", "md", "proto", "py", "toml", "yaml", "yml"}
"""Suffixes: `kv.py` is a file, not a setting."""


@cache
def files() -> list[str]:
    """Every file that is, or would be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = {os.fsdecode(name) for name in listed.stdout.split(b"\0") if name}
    return sorted(name for name in names if (ROOT / name).is_file())


@cache
def text(name: str) -> str:
    """Empty for a binary file."""
    try:
        return (ROOT / name).read_text()
    except UnicodeDecodeError:
        return ""


def written(*suffixes: str) -> list[str]:
    """Files that people write, by suffix."""
    return [name for name in files() if name.endswith(suffixes) and "_pb2" not in name]


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text(name))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    args = function.args
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(args.vararg) + bool(args.kwarg)


def catches_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in BROAD for kind in kinds)


def map_entries() -> list[str]:
    """Paths of README's map: a line "`path` meaning", bullet or table cell before it or not."""
    lines = (re.match(r"[\s|*-]*`([^`\s]+)`\W*\w", line) for line in text("README.md").splitlines())
    return [line[1] for line in lines if line and (line[1] in files() or line[1].split("/")[0] in FOLDERS)]


def test_generated_code_is_what_the_protos_say(tmp_path: Path) -> None:
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python", "mypy_grpc")]
    plugins = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *outs, *PROTOS]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": plugins}, check=True)
    fresh = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*_pb2*")}
    committed = [name for name in files() if "_pb2" in name]
    assert sorted(f"proto/{name}" for name in fresh) == committed
    stale = [name for name, content in fresh.items() if (ROOT / "proto" / name).read_bytes() != content]
    assert not stale, "run `make proto`"


def test_every_proto_is_generated() -> None:
    assert written(".proto") == [f"proto/{name}" for name in PROTOS]
    assert all(Path(name).name in text("Makefile") for name in PROTOS)


def test_files_are_short() -> None:
    lines = {name: text(name).count("\n") for name in written(".py", ".proto", ".sh", ".toml", ".yml", ".yaml")}
    assert len(lines) > 50
    assert {name: count for name, count in lines.items() if count > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{name}:{function.name}": (function.end_lineno or 0) - function.lineno + 1
        for name in written(".py")
        for function in functions(name)
    }
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_functions_take_few_parameters() -> None:
    counts = {
        f"{name}:{function.name}": num_parameters(function) for name in written(".py") for function in functions(name)
    }
    assert {name: count for name, count in counts.items() if count > MAX_PARAMETERS} == {}


def test_only_the_interceptor_catches_everything() -> None:
    catching = {
        name
        for name in written(".py")
        for node in ast.walk(ast.parse(text(name)))
        if isinstance(node, ast.ExceptHandler) and catches_all(node)
    }
    assert catching <= MAY_CATCH_ALL


@pytest.mark.parametrize(
    ("comment", "limit"), [("type: " + "ignore", MAX_TYPE_IGNORES), ("no" + "qa", MAX_NOQAS)], ids=["type", "lint"]
)
def test_silenced_checks_only_get_fewer(comment: str, limit: int) -> None:
    found = {name: count for name in written(".py") if (count := len(re.findall(f"# {comment}", text(name))))}
    assert sum(found.values()) <= limit, found


def test_nothing_forbidden_is_written_anywhere() -> None:
    found = [
        f"{name}:{number}: {what}"
        for name in files()
        for number, line in enumerate(text(name).splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if re.search(pattern, line)
    ]
    assert found == []


def test_top_level_folders_are_the_known_ones() -> None:
    assert {name.split("/")[0] for name in files() if "/" in name} == FOLDERS


def test_every_file_has_one_place_in_the_readme() -> None:
    mapped = map_entries()
    globs = [entry for entry in mapped if "*" in entry]
    assert all("_pb2" in glob for glob in globs), "a glob stands for generated code only"
    wanted = [name for name in files() if text(name) and name != "README.md"]
    missing = [name for name in wanted if name not in mapped and not any(fnmatch(name, glob) for glob in globs)]
    assert missing == []
    assert sorted({entry for entry in mapped if mapped.count(entry) > 1}) == []


def test_the_readme_maps_no_file_that_is_gone() -> None:
    assert [entry for entry in map_entries() if "*" not in entry and not (ROOT / entry).exists()] == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    (line,) = (line for line in text(".ci/run").splitlines() if line.startswith("exec "))
    command = line.removeprefix("exec ").removesuffix(' "$@"')
    assert command.endswith(" test")
    assert command in [line.split("#")[0].strip() for line in text("README.md").splitlines()]


def test_settings_that_texts_mention_exist() -> None:
    known = [entry.name for entry in entries()]
    sections = "|".join({name.split(".")[0] for name in known})
    mentioned = {
        f"{name}: {setting}"
        for name in [*written(".md", ".yml", ".yaml", ".toml"), *(n for n in files() if "Dockerfile" in n)]
        for setting in settings_in(text(name), sections)
        if setting not in known
    }
    assert mentioned == set()


def settings_in(content: str, sections: str) -> Iterator[str]:
    for variable in re.findall(r"\bAUGURY_(\w+__\w+)", content):
        yield variable.lower().replace("__", ".")
    for section, field in re.findall(rf"(?:`|--set[ =])({sections})\.([a-z_]+)\b", content):
        if field not in NOT_SETTINGS:
            yield f"{section}.{field}"
