"""Where model folders are: given by path, or prepared under a name in the cache."""

from collections.abc import Mapping
from pathlib import Path


def cache_folder(env: Mapping[str, str]) -> Path:
    """The folder for prepared models: ``AUGURY_CACHE``, else ``XDG_CACHE_HOME``/augury, else ~/.cache/augury."""
    if cache := env.get("AUGURY_CACHE"):
        return Path(cache)
    if base := env.get("XDG_CACHE_HOME"):
        return Path(base) / "augury"
    return Path.home() / ".cache" / "augury"


def model_folder(path: str, env: Mapping[str, str]) -> Path:
    """The folder that ``model.path`` means. Raises ValueError where there is none."""
    for folder in (Path(path), cache_folder(env) / path):
        if (folder / "config.json").is_file():
            return folder.resolve()
    raise ValueError(f"model.path is {path!r}: no folder with a config.json, and no prepared model of that name")


def served_name(name: str | None, folder: Path) -> str:
    """What clients call the model: ``model.name``, else the folder's name."""
    return name or folder.name
