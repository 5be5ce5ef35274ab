"""The bootstrap script: what it installs again and when, what it runs, and where it stops."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import bootstrap

SCRIPT = Path(bootstrap.__file__)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the script takes for its repository, with this interpreter as its environment."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(bootstrap, "PYTHON", Path(sys.executable))
    return tmp_path


def test_an_old_python_can_read_the_file_as_far_as_its_refusal() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))
    top = ast.parse(SCRIPT.read_text()).body
    first_after_refusal = next(index for index, node in enumerate(top) if isinstance(node, ast.If)) + 1
    assert {type(node) for node in top[: first_after_refusal - 1]} == {ast.Expr, ast.Import}


def test_it_starts_without_any_installed_package() -> None:
    shown = subprocess.run([sys.executable, "-I", "-S", SCRIPT, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "deploy/bootstrap.py serve" in shown.stdout
    assert subprocess.run([sys.executable, "-I", "-S", SCRIPT, "no-such-verb"], capture_output=True).returncode == 2


def test_what_is_stamped_is_not_installed_again(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not bootstrap.is_installed("serve")
    bootstrap.stamp_file("serve").write_text(bootstrap.stamp())
    assert bootstrap.is_installed("serve") and not bootstrap.is_installed("dev")
    monkeypatch.setattr(bootstrap, "step", None)
    bootstrap.install("serve")


def test_dev_contains_serve(checkout: Path) -> None:
    bootstrap.stamp_file("dev").write_text(bootstrap.stamp())
    assert bootstrap.is_installed("dev") and bootstrap.is_installed("serve")


def test_new_requirements_or_a_new_place_install_again(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bootstrap.stamp_file("dev").write_text(bootstrap.stamp())
    (checkout / "pyproject.toml").write_text("[project]\ndependencies = ['numpy']\n")
    assert not bootstrap.is_installed("dev")
    bootstrap.stamp_file("dev").write_text(bootstrap.stamp())
    (checkout / "moved").mkdir()
    (checkout / "pyproject.toml").rename(checkout / "moved" / "pyproject.toml")
    monkeypatch.setattr(bootstrap, "ROOT", checkout / "moved")
    assert not bootstrap.is_installed("dev")


def test_a_broken_environment_is_not_usable(tmp_path: Path) -> None:
    assert bootstrap.is_usable(Path(sys.executable))
    assert not bootstrap.is_usable(tmp_path / "python")
    (tmp_path / "python").symlink_to("/bin/false")
    assert not bootstrap.is_usable(tmp_path / "python")


def test_the_first_failed_step_ends_the_run_with_its_exit_code(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bootstrap.stamp_file("dev").write_text(bootstrap.stamp())
    checks = {"first": ["-c", "print('one')"], "second": ["-c", "exit(7)"], "third": ["-c", "print('three')"]}
    monkeypatch.setattr(bootstrap, "CHECKS", checks)
    assert bootstrap.main(["check"]) == 7
    printed = capfd.readouterr()
    assert printed.out.split() == ["==>", "first", "one", "==>", "second"]
    assert "exit code 7" in printed.err


def test_the_test_verb_ends_with_pytest_and_hands_it_the_options(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bootstrap.stamp_file("dev").write_text(bootstrap.stamp())
    monkeypatch.setattr(bootstrap, "CHECKS", {})
    (checkout / "tests").mkdir()
    (checkout / "tests" / "__init__.py").touch()
    (checkout / "tests" / "sim.py").write_text("print('simulated')")
    (checkout / "pytest.py").write_text("import sys; print('tested', *sys.argv[1:])")
    assert bootstrap.main(["test", "-k", "some"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line] == ["==> simulator", "simulated", "==> pytest", "tested -k some"]
