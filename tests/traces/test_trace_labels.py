from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trace_makers as make
import yaml
from msgspec.structs import asdict

from narrows.reducers.traces.labels import (
    BT_1,
    StepSums,
    Thresholds,
    choose,
    delta_label,
    label_steps,
    thresholds_from,
)
from narrows.reducers.traces.reduce import reduce_file
from narrows.reducers.traces.sums import sums_of

SHARES = {
    "idle_share": 0.0,
    "short_kernel_share": 0.0,
    "launch_share": 0.0,
    "input_share": 0.0,
    "communication_busy_share": 0.0,
    "exposed_communication_share": 0.0,
    "exposed_copy_share": 0.0,
}


def sums(num: int = 8, **changes: float) -> StepSums:
    plain = {"step": 100.0, "busy": 100.0, "communication": 0.0, "exposed_communication": 0.0, "exposed_copy": 0.0}
    plain |= {"kernels": 50.0, "short_kernels": 0.0, "gaps": 0.0, "launch_gaps": 0.0, "input_gaps": 0.0} | changes
    return StepSums(**{name: np.full(num, value) for name, value in plain.items()})


@pytest.mark.parametrize(
    ("label", "at_the_limit", "decides"),
    [
        ("launch", {"idle_share": 0.15, "short_kernel_share": 0.5}, "short_kernel_share"),
        ("launch", {"idle_share": 0.15, "launch_share": 0.5}, "launch_share"),
        ("launch", {"idle_share": 0.15, "launch_share": 0.9}, "idle_share"),
        ("input", {"idle_share": 0.15, "input_share": 0.3}, "input_share"),
        ("communication", {"communication_busy_share": 0.3, "exposed_communication_share": 0.2},
         "communication_busy_share"),
        ("communication", {"communication_busy_share": 0.4, "exposed_communication_share": 0.15},
         "exposed_communication_share"),
        ("transfer", {"exposed_copy_share": 0.1}, "exposed_copy_share"),
    ],
)  # fmt: skip
def test_each_rule_holds_at_its_threshold_and_not_just_below(
    label: str, at_the_limit: dict[str, float], decides: str
) -> None:
    shares = SHARES | at_the_limit
    assert choose(shares, BT_1, has_input_spans=True) == (label, False)
    below = shares | {decides: shares[decides] - 1e-9}
    assert choose(below, BT_1, has_input_spans=True)[0] != label or decides == "idle_share"
    if decides == "idle_share":
        assert choose(SHARES | at_the_limit | {"idle_share": 0.15 - 1e-9}, BT_1, has_input_spans=True)[0] == "compute"


def test_waiting_for_data_excludes_launches_and_may_be_inferred() -> None:
    waiting = SHARES | {"idle_share": 0.4, "launch_share": 0.9, "input_share": 0.5}
    assert choose(waiting, BT_1, has_input_spans=True) == ("input", False)
    unexplained = SHARES | {"idle_share": 0.4}
    assert choose(unexplained, BT_1, has_input_spans=False) == ("input", True)
    assert choose(unexplained, BT_1, has_input_spans=True) == ("compute", False)


def test_a_label_returns_what_decided_it_and_how_far_it_was() -> None:
    label = label_steps(sums(busy=100, communication=40, exposed_communication=25), has_input_spans=True)
    assert (label.label, label.sublabel, label.version, label.borderline) == ("communication", "unsplit", "bt-1", False)
    assert label.measurements["communication_busy_share"] == pytest.approx(0.4)
    assert label.margins["communication_busy_share"] == pytest.approx(0.1)
    assert label.stability == 1.0


def test_steps_that_disagree_make_a_borderline_label() -> None:
    mixed = sums(num=9)
    mixed.exposed_copy[:5] = 18.0  # mean 10 of 100: on the threshold
    label = label_steps(mixed, has_input_spans=True)
    assert label.label == "transfer"
    assert label.stability is not None
    assert label.borderline == (label.stability < 0.8)
    assert label.borderline


def test_few_steps_have_no_stability() -> None:
    assert label_steps(sums(num=2), has_input_spans=True).stability is None


def test_other_ranks_traces_split_the_communication() -> None:
    row = sums(communication=40, exposed_communication=25)
    label = label_steps(row, has_input_spans=True, split={"skew": 20.0, "transfer": 5.0, "pipeline": 0.0})
    assert label.sublabel == "skew"


@pytest.mark.parametrize(
    ("label", "changes"),
    [
        ("compute", {"busy": 120.0}),
        ("communication", {"busy": 120.0, "communication": 20.0, "exposed_communication": 20.0}),
        ("transfer", {"busy": 120.0, "exposed_copy": 20.0}),
        ("input", {"gaps": 20.0, "input_gaps": 20.0}),
        ("launch", {"gaps": 20.0, "launch_gaps": 20.0}),
    ],
)
def test_the_label_of_a_difference_says_what_grew(label: str, changes: dict[str, float]) -> None:
    found = delta_label(sums(), sums(step=120.0, **changes), has_input_spans=True)
    assert found.label == label


def test_a_difference_below_one_percent_has_no_label() -> None:
    assert delta_label(sums(), sums(step=100.9, busy=100.9), has_input_spans=True).label == "none"


def test_the_shipped_yaml_holds_the_thresholds_that_are_built_in() -> None:
    shipped = yaml.safe_load((Path(__file__).parents[2] / "flows" / "bottleneck.yaml").read_text())
    assert shipped == asdict(BT_1)
    assert thresholds_from(shipped) == BT_1


def test_a_users_thresholds_are_checked_and_marked() -> None:
    changed = thresholds_from({"idle_share": 0.3})
    assert (changed.idle_share, changed.version) == (0.3, "bt-1+user")
    assert thresholds_from({"version": "ours-2", "idle_share": 0.3}).version == "ours-2"
    with pytest.raises(ValueError, match="idle_shere"):
        thresholds_from({"idle_shere": 0.3})
    with pytest.raises(ValueError, match="share from 0 to 1"):
        Thresholds(idle_share=15)


def test_two_reduced_traces_give_the_label_of_their_difference(tmp_path: Path) -> None:
    """The regressed run differs in one thing: a long copy with nothing beside it in each step."""
    start = make.BASE_US * 1000
    found = []
    for name, copy_ns in (("healthy", 100_000), ("regressed", 700_000)):
        events = []
        for step in range(4):
            at = start + step * 2_000_000
            events += [make.annotation(f"ProfilerStep#{step}", at, 1_000_000 + copy_ns), make.launch(at, 2 * step + 1)]
            events += [
                make.launch(at + 10, 2 * step + 2),
                make.kernel(at + 5_000, 900_000, args={"correlation": 2 * step + 1}),
            ]
            copy = {"cat": "gpu_memcpy", "name": "Memcpy DtoH"}
            events.append(make.kernel(at + 905_000, copy_ns, args={"correlation": 2 * step + 2}, **copy))
        found.append(sums_of(reduce_file(make.write(tmp_path / f"{name}.json", events))))
    healthy, regressed = found
    assert healthy is not None
    assert regressed is not None
    assert delta_label(healthy, regressed, has_input_spans=True).label == "transfer"
    assert delta_label(healthy, healthy, has_input_spans=True).label == "none"
