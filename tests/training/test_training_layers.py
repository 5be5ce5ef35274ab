"""The training-side model is the model that is served."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny_chain import architecture, random_base, random_chain
from tests.worker.tiny import VOCAB_SIZE, save_llama
from worker_svc.training.base import Base
from worker_svc.training.layers import layer_contexts

torch.set_num_threads(1)


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 1, "head_dim": 16, "rope_theta": 500.0}])
def test_hidden_states_are_those_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    reference = save_llama(tmp_path, tie_word_embeddings=True, **changes)
    tokens = torch.arange(60).view(2, 30) % VOCAB_SIZE
    base = Base.load(tmp_path, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        expected = reference.model(tokens).last_hidden_state
        torch.testing.assert_close(base(tokens), expected, atol=1e-4, rtol=1e-4)


def test_a_model_with_a_head_of_its_own_is_refused(tmp_path: Path) -> None:
    save_llama(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ValueError, match="head of its own"):
        Base.load(tmp_path, torch.float32, torch.device("cpu"))


def test_a_layer_with_a_window_sees_that_many_tokens_with_its_own() -> None:
    torch.manual_seed(0)
    base = random_base(architecture())
    layer = base.last_layer
    x_bte = torch.randn(1, 12, 32)
    full, window = layer_contexts(base.architecture, (None, 5), 12, torch.device("cpu"))
    moved = x_bte.clone()
    moved[0, 3] += 1.0
    with torch.no_grad():
        changed = [(layer(moved, c) != layer(x_bte, c)).any(-1)[0].nonzero().flatten().tolist() for c in (full, window)]
    assert changed == [[*range(3, 12)], [3, 4, 5, 6, 7]]


def test_a_base_takes_its_windows_from_config() -> None:
    torch.manual_seed(0)
    changes: dict[str, Any] = {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}
    windowed, full = random_base(architecture(**changes)), random_base(architecture())
    full.load_state_dict(windowed.state_dict())
    tokens = torch.arange(9)[None]
    same = (windowed(tokens) == full(tokens)).all(-1)[0].tolist()
    assert same[:3] == [True] * 3 and not any(same[3:])


@pytest.mark.parametrize(("window", "last"), [(None, [12, 12, 12]), (4, [8, 11, 12])])
def test_row_p_of_module_m_reads_tokens_up_to_p_plus_m_plus_1(window: int | None, last: list[int]) -> None:
    torch.manual_seed(1)
    chain = random_chain(architecture(), (window,) * 3)
    hidden, embedding = torch.randn(2, 1, 16, 32)
    moved = embedding.clone()
    moved[0, 6] += 1.0
    with torch.no_grad():
        pairs = zip(chain(hidden, embedding, 3), chain(hidden, moved, 3), strict=True)
        changed = [(x != y).any(-1)[0].nonzero().flatten().tolist() for x, y in pairs]
    assert [(rows[0], rows[-1]) for rows in changed] == list(zip([5, 4, 3], last, strict=True))
