"""Models that are known by name: SmolLM2, converted once into the cache, and the story model, which lies beside."""

from collections.abc import Mapping
from pathlib import Path

from augury.models import cache_folder, model_folder
from worker_svc.model import smollm2

STORY = "story"
NAMES = (smollm2.NAME, STORY)
DEMO = Path(__file__).parent / "demo"


def prepare(name: str, cache: Path, *, progress: bool) -> Path:
    """The folder of the model of that name, made in ``cache`` where it must be made."""
    return smollm2.prepare(cache, progress=progress) if name == smollm2.NAME else DEMO / name


def ready_folder(path: str, env: Mapping[str, str], *, progress: bool) -> Path:
    """The folder that ``model.path`` means, prepared first where it is a known name. Raises ValueError."""
    if path in NAMES and not Path(path).is_dir():
        return prepare(path, cache_folder(env), progress=progress)
    return model_folder(path, env)
