"""What a worker decides at its start."""

from pathlib import Path

import pytest

from tests.worker.tiny import save_llama
from worker_svc.app import num_threads
from worker_svc.model.named import DEMO


def test_a_small_model_runs_on_one_thread_unless_more_are_wanted(tmp_path: Path) -> None:
    assert num_threads(None, DEMO / "story") == 1
    assert num_threads(3, DEMO / "story") == 3
    save_llama(tmp_path, num_hidden_layers=1, hidden_size=576, intermediate_size=1536)
    assert num_threads(None, tmp_path) is None


def test_threads_of_a_folder_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        num_threads(None, tmp_path)
