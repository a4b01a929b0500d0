from __future__ import annotations

import json

import pytest

from narrows.reducers.readers.common import UnreadableError
from narrows.reducers.readers.dcgm import Outcome, read_dcgm
from narrows.reducers.readers.nccl_topology import read_nccl_topology
from narrows.reducers.readers.network import read_ports
from narrows.reducers.readers.nvidia_smi import read_nvidia_smi
from narrows.reducers.readers.nvidia_topo import read_topo
from narrows.reducers.readers.slurm import expanded, read_slurm


def dcgm_json(root: str, results: list, **more) -> bytes:
    tests = [{"name": "pcie", "results": results, "test_summary": {"status": "Fail"}}]
    return json.dumps({root: {"test_categories": [{"category": "Hardware", "tests": tests}]}, **more}).encode()


def test_dcgm_4_gives_results_an_entity_and_reasons_their_severity():
    warning = {"warning": "persistence mode is off", "error_id": 29, "error_category": 8, "error_severity": 5}
    one = {"entity_group": "GPU", "entity_id": 3, "status": "Fail", "warnings": [warning]}
    two = {"entity_group": "GPU", "entity_id": 4, "status": "Skip"}
    metadata = {"version": "4.2.3", "Driver Version Detected": "580.1"}
    diag = read_dcgm(dcgm_json("DCGM Diagnostic", [one, two], metadata=metadata))
    assert [(result.entity, result.outcome) for result in diag.results] == [
        ("GPU 3", Outcome.FAIL),
        ("GPU 4", Outcome.SKIP),
    ]
    assert (diag.version, diag.driver, diag.configuration_failures) == ("4.2.3", "580.1", ("pcie GPU 3",))


@pytest.mark.parametrize(
    ("result", "entity", "outcome"),
    [
        ({"gpu_ids": "0,1", "status": "PASS"}, "GPU 0,1", Outcome.PASS),
        ({"gpu_id": 2, "status": "Fail", "warnings": "link is slow"}, "GPU 2", Outcome.FAIL),
        ({"status": "NOT_RUN"}, "all", Outcome.NOT_RUN),
        ({"gpu_ids": [0, 1], "status": "Warning"}, "GPU 0,1", Outcome.WARN),
    ],
)
def test_dcgm_3_spells_entities_and_statuses_in_other_ways(result, entity, outcome):
    diag = read_dcgm(dcgm_json("DCGM GPU Diagnostic", [result], version="3.1.7"))
    assert [(one.entity, one.outcome) for one in diag.results] == [(entity, outcome)]
    assert diag.version == "3.1.7"
    assert diag.configuration_failures == ()


def test_a_status_that_dcgm_does_not_have_is_said():
    diag = read_dcgm(dcgm_json("DCGM Diagnostic", [{"status": "Maybe"}, 7]))
    assert [one.outcome for one in diag.results] == [Outcome.UNKNOWN]
    assert diag.not_understood.count == 2


DCGM_TEXT = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.1.7                                          |
| Driver Version Detected   | 535.1                                          |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
|-----  Integration  -------+------------------------------------------------|
| PCIe                      | Fail - GPU: 0                                  |
| Warning                   | GPU 0 has a link that runs below the width tha |
|                           | t it should have; check                        |
|                           | the riser                                      |
|-----  Hardware  ----------+------------------------------------------------|
| memory                    | Skip                                           |
|                           | GPU0: Skip                                     |
|                           | GPU1: Pass                                     |
| odd                       | what is this                                   |
+---------------------------+------------------------------------------------+
"""


def test_the_table_of_dcgm_joins_what_it_wrapped_even_within_a_word():
    diag = read_dcgm(DCGM_TEXT.encode())
    assert [(one.category, one.test, one.entity, one.outcome.value) for one in diag.results] == [
        ("Deployment", "Denylist", "all", "pass"),
        ("Integration", "PCIe", "GPU: 0", "fail"),
        ("Hardware", "memory", "all", "skip"),
        ("Hardware", "memory", "GPU 0", "skip"),
        ("Hardware", "memory", "GPU 1", "pass"),
    ]
    assert diag.results[1].warnings[0].text == (
        "GPU 0 has a link that runs below the width that it should have; check the riser"
    )
    assert (diag.version, diag.driver, diag.not_understood.count) == ("3.1.7", "535.1", 1)


SMI_TEXT = """
==============NVSMI LOG==============

Timestamp                                 : Fri Jun 21 02:03:08 2024
Driver Version                            : 535.1
CUDA Version                              : 12.2

Attached GPUs                             : {attached}
GPU 00000000:53:00.0
    Product Name                          : Some GPU
    Persistence Mode                      : Enabled
    GPU UUID                              : GPU-1
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 4
            Link Width
                Max                       : 16x
                Current                   : 8x
        Replays Since Reset               : 12
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 7 MiB
    BAR1 Memory Usage
        Total                             : 5 MiB
    Utilization
        Gpu                               : 97 %
    ECC Errors
        Volatile
            SRAM Uncorrectable            : N/A
            DRAM Uncorrectable            : 3
    Temperature
        GPU Current Temp                  : 88 C
    GPU Power Readings
        Power Draw                        : 395.20 W
        Current Power Limit               : 400.00 W
        Max Power Limit                   : 700.00 W
    Module Power Readings
        Power Draw                        : N/A
    Clocks
        SM                                : 1200 MHz
    Max Clocks
        SM                                : 1980 MHz
"""


def test_nvidia_smi_text_gives_the_facts_by_their_place():
    query = read_nvidia_smi(SMI_TEXT.format(attached=1).encode())
    (gpu,) = query.gpus
    assert (query.driver, query.cuda, query.attached, query.not_understood.count) == ("535.1", "12.2", 1, 0)
    assert (gpu.bus, gpu.name, gpu.uuid, gpu.performance_state) == ("00000000:53:00.0", "Some GPU", "GPU-1", "P0")
    assert (gpu.pcie_generation, gpu.pcie_generation_max, gpu.pcie_width, gpu.pcie_width_max) == (4, 5, 8, 16)
    assert (gpu.power_w, gpu.power_limit_w, gpu.power_limit_max_w) == (395.2, 400, 700)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.temperature_c, gpu.utilization_percent) == (1200, 1980, 88, 97)
    assert (gpu.memory_total_mib, gpu.memory_used_mib, gpu.ecc_uncorrectable, gpu.pcie_replays) == (81559, 7, 3, 12)
    assert gpu.slowdowns == ("hw slowdown", "hw thermal slowdown")
    assert gpu.memory_clock_mhz is None


def test_a_query_with_fewer_gpus_than_it_announces_is_said_to_be_cut():
    query = read_nvidia_smi(SMI_TEXT.format(attached=8).encode())
    assert [one.why for one in query.not_understood.first] == ["holds 1: the output is cut"]


SMI_XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><driver_version>535.1</driver_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:53:00.0"><product_name>Some GPU</product_name><uuid>GPU-1</uuid>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>4</current_link_gen></pcie_gen>
<link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
</pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>
<fb_memory_usage><total>81559 MiB</total><used>N/A</used></fb_memory_usage>
<gpu_power_readings><power_draw>395.20 W</power_draw><current_power_limit>400.00 W</current_power_limit>
</gpu_power_readings><clocks><sm_clock>1200 MHz</sm_clock></clocks></gpu></nvidia_smi_log>"""


def test_nvidia_smi_xml_gives_the_same_facts():
    query = read_nvidia_smi(SMI_XML.encode())
    (gpu,) = query.gpus
    assert (gpu.name, gpu.pcie_generation, gpu.pcie_width, gpu.power_w, gpu.sm_clock_mhz) == (
        "Some GPU",
        4,
        8,
        395.2,
        1200,
    )
    assert (gpu.memory_total_mib, gpu.memory_used_mib, gpu.slowdowns) == (81559, None, ("sw power cap",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (SMI_XML.replace("<nvidia_smi_log>", '<!ENTITY a "b"><nvidia_smi_log>'), "entities"),
        (SMI_XML[:-40], "not whole XML"),
        ("<nvidia_smi_log>" + "<a>" * 100 + "</a>" * 100 + "</nvidia_smi_log>", "deeper"),
        ("hello", "neither"),
    ],
)
def test_xml_that_is_hostile_or_cut_is_refused(text, why):
    with pytest.raises(UnreadableError, match=why):
        read_nvidia_smi(text.encode())


def test_the_matrix_of_topo_is_read_through_its_underlines():
    text = (
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        "GPU0\t X \tNV18\tPIX\t0-47\t0\t\tN/A\nGPU1\tNV18\t X \tSYS\t48-95\t1\t\tN/A\nNIC0\tPIX\tSYS\t X \t\t\t\n\n"
        "Legend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
    )
    topo = read_topo(text.encode())
    assert topo.devices == ("GPU0", "GPU1", "NIC0")
    assert topo.links["GPU0"] == {"GPU1": "NV18", "NIC0": "PIX"}
    assert (topo.near["GPU1"].cpus, topo.near["GPU1"].numa, topo.nics) == ("48-95", "1", {"NIC0": "mlx5_0"})
    assert topo.not_understood.count == 0
    assert read_topo(text.replace("PIX\t0-47", "??\t0-47").encode()).not_understood.count == 1


IBSTAT = """CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tFirmware version: 28.1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
"""


def test_ibstat_names_ports_that_are_down_or_slower_than_their_kind():
    slow = IBSTAT.replace("mlx5_0", "mlx5_3").replace("Rate: 400", "Rate: 200")
    down = IBSTAT.replace("mlx5_0", "mlx5_2").replace("Active", "Down").replace("LinkUp", "Polling")
    ports = read_ports((IBSTAT + IBSTAT.replace("mlx5_0", "mlx5_1") + down + slow).encode())
    assert (len(ports.ports), ports.down, ports.slower) == (4, ("mlx5_2/1",), ("mlx5_3/1",))
    assert (ports.ports[0].adapter_type, ports.ports[0].rate_gbit_s, ports.ports[0].firmware) == ("MT4129", 400, "28.1")
    assert read_ports((IBSTAT + "\t\tColour: red\nbye\n").encode()).not_understood.count == 2


def test_ibstatus_says_the_same_in_other_words():
    text = (
        "Infiniband device 'mlx5_0' port 1 status:\n\tdefault gid:\t fe80::1\n\tstate:\t 4: ACTIVE\n"
        "\tphys state:\t 5: LinkUp\n\trate:\t 200 Gb/sec (4X HDR)\n\tlink_layer:\t InfiniBand\n"
    )
    (port,) = read_ports(text.encode()).ports
    assert (port.adapter, port.port, port.up, port.rate_gbit_s, port.link_layer) == (
        "mlx5_0",
        1,
        True,
        200,
        "InfiniBand",
    )


def test_a_topology_gives_each_device_its_numa_node_and_its_path():
    text = """<system version="2"><cpu numaid="1"><pci busid="0:1" class="0x060400"><pci busid="0:2" class="0x120000">
    <gpu dev="0" rank="4"><nvlink target="0:9" count="12"/></gpu></pci><pci busid="0:3" class="0x020700"><nic>
    <net name="mlx5_0" speed="400000"/></nic></pci><pci busid="0:4" class="0x030200" link_width="16"/></pci></cpu>
    <rack/></system>"""
    topology = read_nccl_topology(text.encode())
    first, leaf = topology.gpus
    assert (first.name, first.rank, first.numa, first.bus, first.path) == ("0", 4, 1, "0:2", ("0:1", "0:2"))
    assert (first.links[0].kind, first.links[0].target, first.links[0].count) == ("nvlink", "0:9", 12)
    assert (leaf.name, leaf.path, leaf.link_width) == ("0:4", ("0:1", "0:4"), 16)
    (nic,) = topology.nics
    assert (nic.name, nic.net_speed_mbit_s, nic.bus) == ("mlx5_0", 400000, "0:3")
    assert (topology.cpus, topology.not_understood.count) == (1, 1)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a[1-3]", ("a1", "a2", "a3")),
        ("srv[008-010,12],gpu1", ("srv008", "srv009", "srv010", "srv12", "gpu1")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("", ()),
    ],
)
def test_host_lists_are_written_out(text, hosts):
    assert expanded(text) == hosts


@pytest.mark.parametrize("text", ["a[1-999999999]", "a[1-1000]b[1-1000]", "a[1-3"])
def test_host_lists_that_are_endless_or_open_are_refused(text):
    with pytest.raises(ValueError, match=r"more than 100000 hosts|bracket"):
        expanded(text)


def test_scontrol_keeps_values_with_spaces_and_further_equals_signs():
    text = (
        "JobId=30 JobName=my run\n   JobState=RUNNING Reason=None\n   NodeList=n[1-2]\n"
        "   AllocTRES=cpu=256,gres/gpu=8 TimeLimit=1:00\n   Nodes=n1 GRES=gpu:8(IDX:0-7)\n"
        "NodeName=n1 Arch=x86_64\n   State=IDLE\nwhat\n"
    )
    output = read_slurm(text.encode())
    job, node = output.records
    assert (job.kind, job.name, job.hosts) == ("job", "30", ("n1", "n2"))
    assert (job.facts["JobName"], job.facts["AllocTRES"], job.facts["TimeLimit"]) == (
        "my run",
        "cpu=256,gres/gpu=8",
        "1:00",
    )
    assert "Reason" not in job.facts
    assert (node.kind, node.hosts, node.facts["State"]) == ("node", ("n1",), "IDLE")
    assert output.not_understood.count == 1


@pytest.mark.parametrize(
    "text",
    [
        "JobID|JobName|State|Elapsed|\n7|my run|COMPLETED|00:10|\n7.0|step|FAILED||\n7|cut\n",
        "JobID|#JobName|#State|#Elapsed\n7|#my run|#COMPLETED|#00:10\n7.0|#step|#FAILED|#\n7|#cut\n",
        (
            "JobID        JobName    State      Elapsed   \n------------ ---------- ---------- ---------- \n"
            "7            my run     COMPLETED  00:10      \n7.0          step       FAILED                \n"
        ),
    ],
)
def test_sacct_is_read_with_any_delimiter_and_as_a_table(text):
    output = read_slurm(text.encode())
    assert [(row.job, row.facts["JobName"], row.facts["State"], row.facts.get("Elapsed")) for row in output.rows] == [
        ("7", "my run", "COMPLETED", "00:10"),
        ("7.0", "step", "FAILED", None),
    ]
    assert output.not_understood.count == text.count("cut")


def test_topology_conf_gives_switches_blocks_and_sizes():
    text = (
        "# core\nSwitchName=s3 Switches=s[1-2]\nSwitchName=s1 Nodes=n[1-3] LinkSpeed=100\n"
        "BlockName=b Nodes=n4\nBlockSizes=4,8\nx\n"
    )
    output = read_slurm(text.encode())
    assert [(one.name, one.kind, one.hosts, one.switches) for one in output.switches] == [
        ("s3", "switch", (), ("s1", "s2")),
        ("s1", "switch", ("n1", "n2", "n3"), ()),
        ("b", "block", ("n4",), ()),
    ]
    assert (output.block_sizes, output.not_understood.count) == ((4, 8), 1)


def test_other_text_is_no_output_of_slurm():
    with pytest.raises(UnreadableError, match="is no scontrol"):
        read_slurm(b"hello\n", "x")
