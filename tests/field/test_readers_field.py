"""The readers on public files, where they are at hand, against what is known of each."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from narrows.flows.read_command import read_files
from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.detect import Kind, detect
from narrows.reducers.readers.flight_reading import FlightReading, read_dumps
from narrows.reducers.readers.flight_recorder import rank_from_name, read_flight_recorder
from narrows.reducers.readers.logs import TrainingLog, read_log
from narrows.reducers.readers.nccl_pairs import PairReading, read_pairs
from narrows.reducers.readers.nccl_tests import Ending, NcclTests, read_nccl_tests
from narrows.reducers.readers.network import read_ports
from narrows.reducers.readers.nsys import read_nsys
from narrows.reducers.readers.nvidia_smi import read_nvidia_smi
from narrows.reducers.readers.reading import read_evidence, read_file
from narrows.reducers.readers.slurm import read_slurm

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the public files are not beside the project")


def one(folder: str, ending: str) -> Path:
    (path,) = (path for path in (DATA / folder).iterdir() if path.name.endswith(ending))
    return path


def log(ending: str) -> TrainingLog:
    path = one("training_logs", ending)
    return read_log(path.read_bytes(), path.name)


def output_of(ending: str) -> NcclTests:
    path = one("nccl_tests", ending)
    return read_nccl_tests(path.read_bytes(), path.name)


def dumps(ending: str) -> FlightReading:
    folder = one("flight_recorder", ending)
    read = {path.name: read_flight_recorder(path.read_bytes(), path.name) for path in folder.iterdir()}
    assert all(dump.rank == rank_from_name(name) for name, dump in read.items())  # by the groups alone
    assert all(dump.not_understood.count == 0 for dump in read.values())
    return read_dumps(read)


@pytest.mark.parametrize("ending", ["gpu_error_2nd", "lock_gil_1st"])
def test_both_culprits_of_a_hang_are_named_and_nobody_else(ending):
    reading = dumps(ending)
    assert reading.named == (9, 14)
    assert len(reading.ranks) == 16
    (group,) = (found for found in reading.groups if found.description == "EXPERT_MODEL_PARALLEL_GROUP")
    assert (group.group, group.op) == ("72", "nccl:all_to_all")
    assert set(group.missing) | set(group.behind) == {9, 14}
    assert group.waiting == (8, 10, 11, 12, 13, 15)


def pairwise(ending: str) -> PairReading:
    paths = one("nccl_tests", ending).glob("*.log")
    return read_pairs({path.name: read_nccl_tests(path.read_bytes(), path.name) for path in paths})


def test_the_nodes_common_to_the_failed_pairs_are_named():
    reading = pairwise("pairwise_cluster00_G8")
    assert reading.pairs == 136
    assert {"-".join(host[-3:] for host in bad.hosts) for bad in reading.bad_pairs} == {
        "002-008", "003-008", "005-016", "007-016", "008-009",
    }  # fmt: skip
    assert [(node.host, node.bad) for node in reading.common] == [("cnode2-008", 3), ("cnode2-016", 2)]
    assert reading.unexplained == ()


def test_nothing_is_named_in_the_healthy_cluster():
    reading = pairwise("pairwise_cluster01_G8_healthy")
    assert (reading.pairs, reading.bad_pairs, reading.common, reading.unplaced) == (45, (), (), ())


@pytest.mark.parametrize(
    ("ending", "ranks", "averages"),
    [
        ("nccl_allgather.log", 8, [58.2651]),
        ("nccl_reducescatter.log", 8, [60.168]),
        ("cluster01_N10_G1.log", 10, [47.8165, 46.7949, 47.1335, 43.6048, 24.7624]),
        ("cluster01_N1_G8_cnode3-006.log", 8, [437.837, 328.306, 330.576, 313.092, 279.829]),
        ("cluster01_N1_G8_cnode3-008.log", 8, [437.901, 328.602, 330.55, 313.189, 280.036]),
        ("alltoall_output.dat.5", 2160, [0.59419]),
        ("n256.g4.2024-04-29-19-19-41_all_reduce_output.dat.5", 1024, [5.94275]),
        ("n128.g4.2024-04-29-18-31-53_all_reduce_output.dat.1", 512, [1.06678]),
        ("sirius_nccl_2_21_n2.g4.2024-04-29-21-10-30_all_reduce_output.dat.2", 8, [1.18156]),
    ],
)
def test_averages_and_ranks_are_as_printed(ending, ranks, averages):
    reading = output_of(ending)
    assert [test.avg_busbw_gb_s for test in reading.tests] == averages
    assert {len(test.devices) for test in reading.tests} == {ranks}
    assert all(test.ending is Ending.COMPLETE and test.out_of_bounds == 0 for test in reading.tests)
    assert all(len(test.rows) >= 10 for test in reading.tests)


def test_the_average_of_the_rows_is_the_average_that_was_printed():
    for path in (DATA / "nccl_tests").glob("*N10_G*.log"):
        for test in read_nccl_tests(path.read_bytes()).tests:
            sides = [side.busbw_gb_s for row in test.rows for side in (row.out_of_place, row.in_place) if side]
            assert sum(sides) / len(sides) == pytest.approx(test.avg_busbw_gb_s, rel=1e-3)


@pytest.mark.parametrize(("run", "at_1_gib"), [(1, 9.45), (2, 3.18), (3, 36.14), (5, 36.81)])
def test_four_runs_of_one_pair_differ_by_their_network_plugin(run, at_1_gib):
    reading = output_of(f"polaris_nccl_2_18_n2.g4.2024-04-29-18-41-24_all_reduce_output.dat.{run}")
    (test,) = reading.tests
    assert test.rows[-1].size_bytes == 1 << 30
    sides = (test.rows[-1].out_of_place, test.rows[-1].in_place)
    assert at_1_gib in [side.busbw_gb_s for side in sides if side is not None]


def test_a_launch_failure_of_137_bytes_has_no_bandwidth():
    reading = output_of("n128.g4.2024-04-29-18-31-53_all_reduce_output.dat.4")
    assert reading.tests == ()
    assert "CXI alloc failed" in reading.launch_failures[0].text


def test_megatron_counts_and_medians():
    small, large, zero = log("meg_n4.out"), log("meg_n64.out"), log("megdszero.out")
    assert (small.format, len(small.steps)) == ("megatron", 20)
    assert small.median_step_ms == pytest.approx(1380.6)
    assert (len(large.steps), large.steps[0].step_ms, large.steps[0].skipped) == (6, 19932.4, 10)
    assert 6650 < (large.median_step_ms or 0) < 6750  # without the first report
    assert (zero.format, len(zero.steps)) == ("megatron-deepspeed", 4)


def test_the_trainers_bars_of_many_ranks_are_four_steps():
    found = log("hf_ds_base_n16.out")
    assert (found.format, found.timing, found.distinct_steps, len(found.steps)) == ("hf-trainer", "smoothed", 4, 96)
    assert found.median_step_ms == pytest.approx(219_700, rel=0.001)


def test_nemo_steps_are_read_from_lines_and_from_bars():
    lines, bars = log("nemo2_pretrain.log"), log("bionemo_esm1nv_slurm-102.out")
    assert (lines.format, len(lines.steps)) == ("nemo", 20)
    assert [step.step_ms for step in lines.steps][-1] == pytest.approx(444, abs=1)
    assert (bars.format, bars.distinct_steps, bars.total_steps) == ("nemo-1", 200, 200)


def test_logs_with_tables_and_sources_inside_are_read():
    modded, llmc, bars = log("2026-01_VeFused.txt"), log("llmc_main.log"), log("vae_tqdm.log")
    assert (modded.format, len(modded.steps), modded.total_steps) == ("modded-nanogpt", 1583, 1575)
    assert (llmc.format, len(llmc.steps), llmc.steps[-1].step, llmc.median_step_ms) == (
        "llm.c-main",
        19560,
        19559,
        None,
    )
    assert (bars.format, len(bars.steps)) == ("tqdm", 821)


def test_an_abnormal_step_of_an_event_log_stands_out():
    found = log("events_0.log")
    assert [(step.step, round(step.step_ms or 0)) for step in found.steps] == [(177019, 1374427)]


@pytest.mark.parametrize("job", ["45737919", "45734764"])
def test_a_crash_before_the_first_step_gives_its_error_and_its_ranks(job):
    found = log(f"llama_mscclpp-{job}.out")
    assert (found.format, found.steps) == (None, ())
    errors = [failure for failure in found.failures if "Unsupported ncclDataType_t: 4" in failure.text]
    assert errors
    assert all(failure.rank is not None for failure in errors)


@pytest.mark.parametrize(
    ("ending", "down"),
    [
        ("ibstat.47.0.a100.all.active.0", 0),
        ("ibstat.47.0.h100.all.active.0", 0),
        ("ibstat.47.0.h100.all.active.2", 0),
        ("ibstatus.39.0.a100.all.active.0", 0),
        ("ibstat.47.0.h100.some.down.0", 3),
        ("ibstat.47.0.h100.some.down.1", 2),
    ],
)
def test_ports_that_are_down_are_flagged_and_no_others(ending, down):
    ports = read_ports(one("topology", ending).read_bytes())
    assert (len(ports.down), ports.slower, ports.not_understood.count) == (down, (), 0)


def test_a_gated_dcgm_run_fails_for_its_configuration_alone():
    diag = read_file(one("dcgm", "plugins-gated.json")).value
    assert diag.configuration_failures == ("software GPU 0",)
    assert [result.outcome.value for result in diag.results] == ["fail", "skip", "skip"]


def test_every_gpu_of_nvidia_smi_is_read_with_its_clocks():
    for path in [*(DATA / "nvidia_smi").glob("*.valid*"), *(DATA / "nvidia_smi").glob("*.xml")]:
        query = read_nvidia_smi(path.read_bytes(), path.name)
        assert query.attached in (None, len(query.gpus))
        assert all(gpu.name and gpu.uuid and gpu.sm_clock_mhz is not None for gpu in query.gpus)
    cut = read_nvidia_smi(one("nvidia_smi", ".invalid").read_bytes())
    assert (cut.attached, len(cut.gpus), cut.not_understood.count) == (8, 1, 1)
    braked = read_nvidia_smi(one("nvidia_smi", "535.183.01.out.0.valid").read_bytes())
    assert [gpu.bus for gpu in braked.gpus if "hw power brake slowdown" in gpu.slowdowns] == ["00000000:75:00.0"]


def test_slurm_tables_and_records_are_read_whole():
    sacct = read_slurm(one("slurm", "sample-sacct-output.txt").read_bytes())
    running = read_slurm(one("slurm", "sample-sacct-running-output.txt").read_bytes())
    (job,) = read_slurm(one("slurm", "scontrol_out_all_gpus.txt").read_bytes()).records
    tree = read_slurm(one("topology", "oci-sim-tree.conf").read_bytes())
    assert (len(sacct.rows), len(running.rows), len(sacct.columns)) == (68, 10, 109)
    assert (job.name, job.hosts, job.facts["NumCPUs"]) == ("30214", ("node1751",), "256")
    assert (len(tree.switches), sum(len(switch.hosts) for switch in tree.switches)) == (19, 96)
    assert sacct.not_understood.count + running.not_understood.count + tree.not_understood.count == 0


@pytest.mark.parametrize(
    ("name", "kernels", "collectives", "nccl_ms"), [("before", 4010, 66, 25.4), ("after", 3587, 62, 33.7)]
)
def test_an_nsys_pair_has_the_kernels_and_the_nccl_time_that_it_is_known_for(name, kernels, collectives, nccl_ms):
    report = read_nsys(one("nsys", f"mfu_2gpu_{name}.sqlite"))
    assert sum(device.kernels for device in report.devices.values()) == kernels
    assert len(report.nccl) == collectives
    assert sum(kernel.end_ns - kernel.start_ns for kernel in report.nccl) / 1e6 == pytest.approx(nccl_ms, abs=0.06)
    for device in report.devices.values():
        assert device.busy_ns + device.idle_ns == device.span_ns


FOLDERS = {
    "nvidia_smi": {Kind.NVIDIA_SMI, Kind.UNKNOWN},
    "topology": {Kind.PORTS, Kind.NCCL_TOPOLOGY, Kind.SLURM, Kind.UNKNOWN},
    "slurm": {Kind.SLURM, Kind.UNKNOWN},
    "training_logs": {Kind.TRAINING_LOG, Kind.UNKNOWN},
    "crash_logs": {Kind.TRAINING_LOG},
    "nccl_tests": {Kind.NCCL_TESTS, Kind.UNKNOWN},
    "dcgm": {Kind.DCGM},
    "nsys": {Kind.NSYS},
    "other": {Kind.UNKNOWN},
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_taken_for_another_kind_and_what_is_read_goes_into_json(folder, capsys):
    paths = [path for path in (DATA / folder).iterdir() if path.is_file()]
    assert {detect(path.read_bytes()) for path in paths} <= FOLDERS[folder]
    read_files(paths, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert len(found["files"]) == len(paths)
    assert all(
        ("error" in file) == (detect(Path(file["path"]).read_bytes()) is Kind.UNKNOWN) for file in found["files"]
    )


@pytest.mark.parametrize(
    ("folder", "ending"),
    [
        ("dcgm", ".json"),
        ("nvidia_smi", "dual_a5000-v13.xml"),
        ("nvidia_smi", "183.01.out.0.valid"),
        ("topology", "ndv5-topo.xml"),
        ("topology", "some.down.0"),
        ("topology", "oci-sim-tree.conf"),
        ("slurm", "sacct-output.txt"),
        ("slurm", "all_gpus.txt"),
        ("training_logs", "meg_n4.out"),
        ("training_logs", "vae_tqdm.log"),
        ("nccl_tests", "cluster01_N10_G1.log"),
    ],
)
def test_how_a_text_was_stored_changes_nothing_of_its_reading(folder, ending, tmp_path):
    plain = one(folder, ending)
    data, text = plain.read_bytes(), plain.read_bytes().decode("utf-8", "replace")
    true = read_file(plain)
    for name, stored in (
        ("windows", data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")),
        ("utf-16", text.encode("utf-16")),
        ("marked utf-8", text.encode("utf-8-sig")),
        ("rotated", b"\x00" * 700 + data),
        ("crashed", data + b"\x00" * 700),
        ("gzip twice", gzip.compress(gzip.compress(data))),
    ):
        target = tmp_path / name
        target.write_bytes(stored)
        found = read_file(target)
        assert (found.kind, found.value, found.torn) == (true.kind, true.value, False), name


def test_a_cut_or_compressed_export_of_nsys_is_known_for_what_it_is(tmp_path):
    whole = one("nsys", "mfu_2gpu_after.sqlite")
    packed, cut = tmp_path / "packed", tmp_path / "cut"
    packed.write_bytes(gzip.compress(whole.read_bytes(), compresslevel=1))
    cut.write_bytes(whole.read_bytes()[:1_000_000])
    assert read_file(packed).value == read_file(whole).value
    with pytest.raises(UnreadableError, match="is a damaged SQLite file"):
        read_file(cut)


def test_a_diagnostic_that_skipped_tests_says_which(capsys):
    assert read_files([one("dcgm", ".json")]) == 0
    assert "skipped or not run, which is no pass: memory GPU 0, pcie GPU 0" in capsys.readouterr().out


def test_random_damage_to_public_files_raises_nothing(tmp_path):
    rng = random.Random(5)
    folders = (
        "dcgm",
        "nvidia_smi",
        "topology",
        "slurm",
        "nccl_tests",
        "training_logs",
        "crash_logs",
        "flight_recorder",
    )
    files = [path for name in folders for path in (DATA / name).rglob("*") if path.is_file()]
    files = [path for path in files if path.stat().st_size < 60_000]
    target = tmp_path / "damaged"
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        data = bytearray(rng.choice(files).read_bytes())
        for _ in range(rng.choice((1, 20, 200))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        target.write_bytes(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        evidence = read_evidence([target])  # a NarrowsError is caught within; any other would end this test
        outcomes["read"] += len(evidence.readings)
        outcomes["refused"] += len(evidence.refusals)
    assert min(outcomes.values()) > 20
