"""The losses of a distillation, one pure function each.

B texts, b keys, d dimensions; all vectors are unit vectors.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import kl_div, log_softmax


def cosine_distance(*, student: Tensor, teacher: Tensor) -> Tensor:
    """The mean of 1 - <s, t> = |s - t|^2 / 2 over vectors [B, d] (LEAF's loss, on the sphere)."""
    return (1.0 - (student * teacher).sum(dim=-1)).mean()


def similarity_divergence(*, student: Tensor, teacher: Tensor, keys: Tensor, tau: float) -> Tensor:
    """Mean KL(p_t || p_s) of two distributions over keys [b, d], p = softmax(<., k> / tau).

    The retriever's distribution of the memory (RAE-XMC Eq. 5) has the same form: keys that the
    teacher finds near weigh most, so the error counts where it changes the ranking.
    """
    log_p_student = log_softmax(student @ keys.T / tau, dim=-1)  # [B, b]
    log_p_teacher = log_softmax(teacher @ keys.T / tau, dim=-1)  # [B, b]
    return kl_div(log_p_student, log_p_teacher, reduction="batchmean", log_target=True)
