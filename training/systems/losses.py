"""The losses of all systems, one pure function each, over scores and masks of one batch.

    B instances, P labels of the pool (every label of the batch, each once)
    s(a, b) inner products of unit vectors
    sampled [B, P]    positives that were sampled for this batch
    positives [B, P]  every positive inside the pool, sampled or not
    negatives [B, P]  labels that may act as negatives: neither positives nor filtered
    instance_negatives [B, B]  pairs of instances without a common label: Q(y) of RAE-XMC's Eq. 10

Losses are means over the instances that have a positive in the pool. A term without negatives in
its denominator is zero.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, relu, softplus

_NEVER = -1e9  # its exp is 0; with -inf a row without negatives would give nan


def decoupled_softmax(
    *, label_scores: Tensor, sampled: Tensor, negatives: Tensor, tau: float
) -> Tensor:
    """RAE-XMC Eq. 9 over the pool: other positives are in neither numerator nor denominator.

    If the pool is the batch's positives, it is DPR's InfoNCE without false negatives. With mined
    hard negatives it is ANCE's loss, with all labels DEXML's.
    """
    denominator = _log_sum(label_scores / tau, negatives)  # [B]
    return _mean_contrast(label_scores / tau, denominator, sampled)


def contrast_with_instances(
    *,
    label_scores: Tensor,
    instance_scores: Tensor,
    sampled: Tensor,
    negatives: Tensor,
    instance_negatives: Tensor,
    tau: float,
) -> Tensor:
    """RAE-XMC Eq. 10: Eq. 9 whose denominator also has the batch's instances of other labels."""
    denominator = torch.logaddexp(
        _log_sum(label_scores / tau, negatives), _log_sum(instance_scores / tau, instance_negatives)
    )  # [B]
    return _mean_contrast(label_scores / tau, denominator, sampled)


def triplet(
    *, label_scores: Tensor, sampled: Tensor, negatives: Tensor, margin: float, hardest: int
) -> Tensor:
    """NGAME and IRENE stage I: [s(x, n) - s(x, p) + margin]_+ with the batch's hardest negatives.

    Each positive is compared with at most `hardest` negatives; the mean is over these pairs.
    """
    masked = label_scores.masked_fill(~negatives, _NEVER)
    hard = masked.topk(min(hardest, masked.shape[1]), dim=1).values  # [B, h]
    rows, columns = sampled.nonzero(as_tuple=True)  # [S]
    violations = relu(hard[rows] - label_scores[rows, columns, None] + margin)  # [S, h]
    compared = hard[rows] > _NEVER / 2
    return violations.sum() / compared.sum().clamp(min=1)


def one_versus_all(*, logits: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """OvA-BCE: binary cross-entropy, summed over each instance's labels that are not filtered."""
    counted = positives | negatives
    losses = binary_cross_entropy_with_logits(logits, positives.to(logits.dtype), reduction="none")
    return (losses * counted).sum() / positives.any(dim=1).sum().clamp(min=1)


def probabilistic_contrast(
    *,
    label_scores: Tensor,
    sampled: Tensor,
    negatives: Tensor,
    certainty: float,
    steepness: float,
    threshold: float,
) -> Tensor:
    """SiameseXML: the likelihood of positives and negatives, P(relevant) = c exp(d (s - 1)).

    Sums -log P of positives and -log(1 - P) of negatives, both divided by d, over an instance's
    labels. c is the `certainty`, below 1, d the `steepness`. A negative whose term is below the
    `threshold` is easy and does not count, as in the authors' code.
    """
    attracted = 1.0 - label_scores - math.log(certainty) / steepness  # [B, P]
    close = label_scores.masked_fill(~negatives, -1.0)
    repelled = -torch.log1p(-certainty * torch.exp(steepness * (close - 1.0))) / steepness
    counted = negatives & (repelled >= threshold)
    return (attracted * sampled + repelled * counted).sum() / sampled.any(dim=1).sum().clamp(min=1)


def pick_some_labels(
    *, scores: Tensor, targets: Tensor, candidates: Tensor, tau: float, normalized: bool = True
) -> Tensor:
    """UniDEC's PAL-N over the pool: the mean negative log softmax of each row's targets.

    `targets` marks the positives that a row is pulled to, `candidates` the columns in its
    denominator, positives included. `scores` are [B, P] for L_q2l, transposed [P, B] for L_l2q.
    Without `normalized`, a row's targets are summed (PAL, Tables 6 and 7). With one sampled target
    per row, the loss is POL.
    """
    logits = scores / tau
    denominator = _log_sum(logits, candidates)  # rows
    per_pair = (denominator[:, None] - logits) * targets
    if normalized:
        return _mean_over_rows(per_pair, targets)
    return per_pair.sum() / targets.any(dim=1).sum().clamp(min=1)


def pick_some_both_ways(
    *,
    scores: Tensor,
    targets: Tensor,
    candidates: Tensor,
    tau: float,
    queries: float,
    normalized: bool = True,
) -> Tensor:
    """UniDEC Eq. 6, q L_q2l + (1 - q) L_l2q, of scores and masks [B, P]; q is `queries`."""
    loss = partial(pick_some_labels, tau=tau, normalized=normalized)
    to_labels = loss(scores=scores, targets=targets, candidates=candidates)
    to_instances = loss(scores=scores.T, targets=targets.T, candidates=candidates.T)
    return queries * to_labels + (1.0 - queries) * to_instances


def matching(vectors: Tensor, targets: Tensor) -> Tensor:
    """One term of MOGIC's matching loss: the mean distance ||x - x*|| of vectors [n, d]."""
    return torch.linalg.vector_norm(vectors - targets, dim=-1).mean()


def _mean_contrast(logits: Tensor, denominator: Tensor, sampled: Tensor) -> Tensor:
    """Mean over instances of -log exp(p) / (exp(p) + exp(denominator)), averaged over p."""
    per_pair = softplus(denominator[:, None] - logits) * sampled
    return _mean_over_rows(per_pair, sampled)


def _mean_over_rows(per_pair: Tensor, mask: Tensor) -> Tensor:
    counts = mask.sum(dim=1)
    per_row = per_pair.sum(dim=1) / counts.clamp(min=1)
    return per_row.sum() / (counts > 0).sum().clamp(min=1)


def _log_sum(logits: Tensor, mask: Tensor) -> Tensor:
    return torch.logsumexp(logits.masked_fill(~mask, _NEVER), dim=1)
