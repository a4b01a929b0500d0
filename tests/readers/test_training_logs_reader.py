from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.logs import TrainingLog, looks_like, read_log

MEGATRON = (
    " iteration {n:8d}/     500 | consumed samples: 40 | elapsed time per iteration (ms): {ms:.1f} | "
    "learning rate: 3.0E-05 | global batch size:     4 | lm loss: 1.2E+01 | number of skipped iterations:   2 |"
)


def read(text: str, pattern: str | None = None) -> TrainingLog:
    return read_log(text.encode(), "train.log", pattern)


SAMPLES = {
    "megatron": (
        MEGATRON.format(n=10, ms=1500.5),
        {"step": 10, "step_ms": 1500.5, "loss": 12.0, "lr": 3e-5, "skipped": 2},
    ),
    "nemo": (
        (
            "Training epoch 0, iteration 3/19 | lr: 1e-07 | global_batch_size: 4 | global_step: 3 | "
            "reduced_train_loss: 10.8 | train_step_timing in s: 0.45 | consumed_samples: 8"
        ),
        {"step": 3, "step_ms": 450.0, "loss": 10.8, "lr": 1e-7},
    ),
    "torchtitan": (
        (
            "[titan] 2025-01-02 03:04:05,500 - root - INFO - step: 20  loss:  4.5000  grad_norm:  1.0  "
            "memory: 30.1GiB(40%)  tps: 9,982  tflops: 120.50  mfu: 30.1%"
        ),
        {"step": 20, "loss": 4.5, "tokens_per_s": 9982.0, "tflops": 120.5, "unix_s": 1735787045.5},
    ),
    "deepspeed": (
        "steps: 30 loss: 6.9 iter time (s): 0.512 samples/sec: 31.25",
        {"step": 30, "step_ms": 512.0, "loss": 6.9, "samples_per_s": 31.25},
    ),
    "nanochat": (
        "step 00010/21400 (0.05%) | loss: 6.125 | lrm: 1.00 | dt: 512.30ms | tok/sec: 1,023,000 | mfu: 45.1",
        {"step": 10, "step_ms": 512.3, "loss": 6.125, "tokens_per_s": 1023000.0},
    ),
    "nanogpt": ("iter 250: loss 3.25, time 123.45ms, mfu 20.10%", {"step": 250, "step_ms": 123.45, "loss": 3.25}),
    "llm.c": (
        "step   12/19560 | loss 7.5 (+nanz)| norm 1.5 (+nanz)| lr 1.0e-04 | 310.12 ms | 45.6% bf16 MFU | 1690000 tok/s",
        {"step": 12, "step_ms": 310.12, "loss": 7.5, "lr": 1e-4, "tokens_per_s": 1690000.0, "grad_norm": 1.5},
    ),
    "llm.c-main": ("s:7 trl:9.5 lr:0.000009 norm:4.5", {"step": 7, "loss": 9.5, "lr": 9e-6, "grad_norm": 4.5}),
    "atorch": (
        (
            '[2025-04-21T23:53:58.6] [426] [1] [T] [#log] [INSTANT] {"global_step": 17, "logs": '
            '{"elapsed time per iteration (ms)": 1500.5, "TFLOPS": 2.5}}'
        ),
        {"step": 17, "step_ms": 1500.5, "tflops": 2.5},
    ),
    "lightning": (
        "Epoch 0:  48%|####      | 96/200 [01:06<01:12,  2.00it/s, loss=3.27, v_num=, reduced_train_loss=3.090]",
        {"step": 96, "step_ms": 500.0, "loss": 3.27},
    ),
    "tqdm": ("train:  25%|##   | 5/20 [00:10<00:30,  2.50s/it]", {"step": 5, "step_ms": 2500.0}),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_line_of_every_format_is_recognised_and_read(name):
    line, expected = SAMPLES[name]
    log = read(f"loading the weights\n{line}\nsaving\n")
    assert (log.format, log.lines, log.lines_matched) == (name, 3, 1)
    assert {key: getattr(log.steps[0], key) for key in expected} == pytest.approx(expected)
    assert log.steps[0].line == 2


@pytest.mark.parametrize(
    "prefix", ["0: ", "[rank3]: ", "[default3]: ", "[1,3]<stdout>:", "\x1b[36m", "[2024-01-01 10:00:00] "]
)
@pytest.mark.parametrize("name", ["megatron", "torchtitan", "nanogpt", "llm.c", "nemo"])
def test_prefixes_and_colours_change_nothing(prefix, name):
    line, expected = SAMPLES[name]
    log = read(f"{prefix}{line}\n")
    assert log.format == name
    measured = {key: value for key, value in expected.items() if key != "unix_s"}
    assert {key: getattr(log.steps[0], key) for key in measured} == pytest.approx(measured)


def test_colour_inside_a_number_is_taken_out():
    log = read("\x1b[31mstep: 20\x1b[0m  loss:  4.\x1b[32m5000\x1b[39m  tps: 9,\x1b[33m982\x1b[39m\n")
    assert (log.steps[0].loss, log.steps[0].tokens_per_s) == (4.5, 9982.0)


def test_the_launchers_label_is_the_rank_of_the_line():
    assert read("[rank3]: " + SAMPLES["nanogpt"][0]).steps[0].rank == 3
    assert read("12: " + SAMPLES["nanogpt"][0]).steps[0].rank == 12
    assert read(SAMPLES["nanogpt"][0]).steps[0].rank is None


@pytest.mark.parametrize("width", [60, 75, 80, 100, 120])
def test_an_iteration_line_wrapped_over_several_is_read_whole(width):
    line = MEGATRON.format(n=10, ms=1500.5)
    text = "\n".join(line[at : at + width] for at in range(0, len(line), width))
    log = read(text + "\ntime (ms) | forward: 12.5 | lm loss: 99.0\n")
    assert (log.steps[0].step_ms, log.steps[0].loss, log.steps[0].skipped) == (1500.5, 12.0, 2)


def test_megatron_with_deepspeed_beside_it_is_named_so():
    assert read("using deepspeed 0.14\n" + SAMPLES["megatron"][0]).format == "megatron-deepspeed"


def test_carriage_returns_part_the_bars_and_keep_the_line_number():
    bars = "\r".join(f" {n}/4 [00:0{n}<00:01,  1.00s/it]".join(("x|", "")) for n in range(1, 5))
    log = read(f"start\n{bars}[INFO] done\n")
    assert [one.step for one in log.steps] == [1, 2, 3, 4]
    assert {one.line for one in log.steps} == {2}
    assert log.timing == "smoothed"


def test_the_trainer_of_hugging_face_is_told_from_a_bare_bar_by_its_dictionaries():
    log = read("x| 1/4 [00:05<00:15,  5.00s/it]\n{'train_runtime': 20.0, 'train_loss': 3.5, 'epoch': 1.0}\n")
    assert (log.format, log.steps[0].step_ms) == ("hf-trainer", 5000.0)


def test_a_dictionary_glued_to_its_bar_belongs_to_the_bars_step():
    log = read("x| 1/4 [00:05<00:15,  5.00s/it]{'loss': 2.5, 'learning_rate': 3e-05, 'epoch': 0.2}\n")
    (step,) = log.steps
    assert (step.step, step.step_ms, step.loss, step.lr) == (1, 5000.0, 2.5, 3e-5)


def test_a_running_total_gives_the_differences_of_neighbours_alone():
    text = "".join(
        f"step:{n}/9 train_time:{total}ms step_avg:1.0ms\n" for n, total in ((1, 50), (2, 80), (3, 130), (7, 900))
    )
    log = read(
        text + "step:7/9 val_loss:3.1 train_time:900ms step_avg:1.0ms\nstep:8/9 train_time:940ms step_avg:1.0ms\n"
    )
    assert [one.step_ms for one in log.steps] == [None, 30.0, 50.0, None, None, 40.0]
    assert log.timing == "difference"


def test_source_code_inside_a_log_is_no_step():
    source = 'print0(f"step:{step}/{n} train_time:{ms:.0f}ms")\nlog(f"iter {i}: loss {x:.4f}, time {dt*1000:.2f}ms")\n'
    log = read(source + SAMPLES["nanogpt"][0])
    assert (log.source_lines, log.lines_matched) == (2, 1)


def test_the_first_report_is_left_out_of_the_median():
    log = read("\n".join(MEGATRON.format(n=10 * n, ms=ms) for n, ms in enumerate((19000, 700, 710, 690), start=1)))
    assert log.median_step_ms == 700.0


def test_a_users_pattern_reads_what_no_format_does():
    log = read("e 3 took 1.25 sec, loss=2.5\n", r"e (?P<step>\d+) took (?P<step_s>[\d.]+) sec, loss=(?P<loss>\S+)")
    assert (log.format, log.steps[0].step, log.steps[0].step_ms, log.steps[0].loss) == ("pattern", 3, 1250.0, 2.5)


@pytest.mark.parametrize(("pattern", "what"), [("(", "regular expression"), (r"(?P<loss>\d)", "no group named step")])
def test_a_pattern_that_cannot_work_is_a_bad_argument(pattern, what):
    with pytest.raises(ValueError, match=what):
        read("x\n", pattern)


def test_a_pattern_that_matches_nothing_is_said():
    with pytest.raises(UnreadableError, match="matches none of 1 lines"):
        read("x\n", r"(?P<step>\d+)")


def test_a_log_of_a_crash_has_failures_and_no_steps():
    log = read(
        "torchrun train.py\n1: [rank1]: Traceback (most recent call last):\n"
        "1: [rank1]: RuntimeError: Unsupported type: 4\n"
    )
    assert (log.format, log.steps, log.failure_lines) == (None, (), 2)
    assert [(one.line, one.rank) for one in log.failures] == [(2, 1), (3, 1)]


def test_text_of_another_kind_is_refused_with_the_next_move():
    assert not looks_like("PATH=/usr/bin\nstep by step\n")
    with pytest.raises(UnreadableError, match=r"train\.log: none of 2 lines .* give a pattern"):
        read("PATH=/usr/bin\nstep by step\n")


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.1, 1e6)), min_size=1, max_size=20))
def test_every_step_that_megatron_prints_comes_back(steps):
    log = read("\n".join(MEGATRON.format(n=n, ms=ms) for n, ms in steps))
    assert [one.step for one in log.steps] == [n for n, _ in steps]
    assert [one.step_ms for one in log.steps] == [float(f"{ms:.1f}") for _, ms in steps]
