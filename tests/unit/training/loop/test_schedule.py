"""The learning rate's course and the precision."""

import pytest

from service.core.errors import InvalidConfig
from training.loop.schedule import learning_rate_factor
from training.models.precision import supported_precision


def test_it_rises_and_falls_linearly() -> None:
    course = [learning_rate_factor(step, steps=10, warmup=0.2) for step in range(10)]

    assert course == pytest.approx([0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_without_warm_up_it_starts_whole() -> None:
    assert learning_rate_factor(0, steps=5, warmup=0.0) == 1.0


def test_one_step_is_a_course_too() -> None:
    assert learning_rate_factor(0, steps=1, warmup=1.0) == 1.0


def test_fp16_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InvalidConfig, match="fp16 needs a GPU"):
        supported_precision("fp16")
    assert supported_precision("auto") in ("bf16", "fp32")
    assert supported_precision("bf16") == "bf16"
