"""Settings: where they come from, and what happens to wrong ones."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from augury.config import Settings, entries, load

NAMES = [entry.name for entry in entries()]


def variable(name: str) -> str:
    return "AUGURY_" + name.upper().replace(".", "__")


def value_of(settings: Settings, name: str) -> object:
    section, field = name.split(".")
    return getattr(getattr(settings, section), field)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "augury.toml"
    path.write_text(
        "[kv]\nblock_size = 32\nprefix_caching = false\n\n[gateway]\nport = 1\n[registry]\nurl = 'redis://a'\n"
    )
    return path


def test_nothing_given_means_the_defaults() -> None:
    assert load() == Settings()
    assert load(env={"PATH": "/bin", "AUGURY_HOME": "x"}) == Settings()


def test_options_win_over_the_environment_and_that_over_the_file(file: Path) -> None:
    env = {"AUGURY_GATEWAY__PORT": "2", "AUGURY_KV__BLOCK_SIZE": "64"}
    settings = load(file, env, ["gateway.port=3"])
    assert settings.gateway.port == 3
    assert settings.kv.block_size == 64
    assert settings.kv.prefix_caching is False
    assert settings.registry.url == "redis://a"


def test_the_last_option_wins_and_spaces_do_not_matter() -> None:
    assert load(overrides=["kv.block_size=8", " kv.block_size = 4 "]).kv.block_size == 4


def test_a_value_may_hold_an_equals_sign() -> None:
    assert load(overrides=["registry.url=redis://h?a=b"]).registry.url == "redis://h?a=b"


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("kv.blocksize", "kv.block_size"), ("gateway.prt", "gateway.port"), ("scheduler.max_batch", "scheduler.max_")],
)
def test_an_unknown_name_is_told_the_nearest_right_one(wrong: str, right: str, tmp_path: Path) -> None:
    section, field = wrong.split(".")
    path = tmp_path / "f.toml"
    path.write_text(f"[{section}]\n{field} = 1\n")
    sources: list[dict[str, Any]] = [{"overrides": [f"{wrong}=1"]}, {"env": {variable(wrong): "1"}}, {"file": path}]
    for source in sources:
        with pytest.raises(ValueError, match=rf"'{wrong}'.*nearest is '{right}"):
            load(**source)


@given(name=st.text(max_size=12).filter(lambda name: name.strip() not in NAMES and "=" not in name))
def test_any_other_name_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="unknown setting"):
        load(overrides=[f"{name}=1"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv.block_size", "0"),
        ("kv.block_size", "1025"),
        ("kv.block_size", "sixteen"),
        ("kv.num_blocks", "1"),
        ("kv.prefix_caching", "perhaps"),
        ("gateway.port", "65536"),
        ("gateway.port", "-1"),
        ("scheduler.policy", "lifo"),
        ("log.level", "loud"),
        ("registry.key_prefix", ""),
    ],
)
def test_a_bad_value_is_a_value_error_that_names_the_setting(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"bad setting: .*{name}"):
        load(overrides=[f"{name}={value}"])


@pytest.mark.parametrize("text", ["kv = 3", "port = 3", "[kv", "[[kv]]\nblock_size = 3", "[kv.block_size]\nx = 1"])
def test_a_file_that_is_no_table_of_sections_is_a_value_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="setting"):
        load(path)


def test_a_missing_file_is_a_value_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.toml"):
        load(tmp_path / "absent.toml")


def test_an_option_without_a_value_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="name=value"):
        load(overrides=["kv.block_size"])


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_is_documented_and_its_default_is_valid(name: str) -> None:
    (entry,) = (entry for entry in entries() if entry.name == name)
    assert len(entry.meaning) > 10
    assert not entry.meaning.endswith(".")
    assert value_of(Settings(), name) == entry.default
    if entry.default is not None:
        assert load(env={variable(name): str(entry.default)}) == Settings()
        assert load(overrides=[f"{name}={entry.default}"]) == Settings()


@pytest.mark.parametrize("name", NAMES)
def test_settings_cannot_be_changed(name: str) -> None:
    section, field = name.split(".")
    with pytest.raises(AttributeError):
        setattr(getattr(Settings(), section), field, None)
