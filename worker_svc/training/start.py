"""Where a module starts from: the best linear guess of the base's next hidden state, and a faint last layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker_svc.training.chain import Chain
from worker_svc.training.distill import Example, Frozen
from worker_svc.training.layers import Layer

_KEPT = 0.1
"""What is left of the copied layer's two output matrices, so that they do not drown the guess."""
_RIDGE = 1e-2
"""Added to the mean square of the inputs, which is 1."""
_NUM_EXAMPLES = 256


@torch.no_grad()
def start(chain: Chain, layer: Layer, frozen: Frozen, examples: Sequence[Example]) -> None:
    """Give every module of ``chain`` a copy of ``layer`` behind the projection that fits ``examples`` best.

    Ridge regression: with rows x = [norm(E[t_{p+1}]); norm(h_p)] and y = h_{p+1} / rms(h), W = (X'X + r I)^-1 X'Y.
    """
    hidden_size = chain.architecture.hidden_size
    gram = torch.zeros(2 * hidden_size, 2 * hidden_size)
    moment = torch.zeros(2 * hidden_size, hidden_size)
    num_rows, rms = 0, _rms(examples)
    for example in examples[:_NUM_EXAMPLES]:
        h_te = example.hidden_te.float()
        e_te = frozen.embedding_ve[torch.tensor(example.text.tokens[:-1])].float().cpu()
        x_tf = torch.cat([_unit(e_te[1:]), _unit(h_te[:-1])], -1)
        gram += x_tf.T @ x_tf
        moment += x_tf.T @ (h_te[1:] / rms)
        num_rows += len(x_tf)
    weight_fe = torch.linalg.solve(gram + _RIDGE * num_rows * torch.eye(len(gram)), moment)
    for module in chain.each():
        module.load_state_dict(layer.state_dict(), strict=False)
        module.self_attn.o_proj.weight *= _KEPT
        module.mlp.down_proj.weight *= _KEPT
        module.eh_proj.weight.copy_(weight_fe.T)
        module.out_norm.weight.fill_(rms)


def _unit(x_te: Tensor) -> Tensor:
    return x_te / x_te.square().mean(-1, keepdim=True).sqrt()


def _rms(examples: Sequence[Example]) -> float:
    """The root mean square of an element of the hidden states, from a few of them."""
    return float(torch.cat([example.hidden_te for example in examples[:16]]).float().square().mean().sqrt())
