"""What an agent tells of its host's load."""

from __future__ import annotations

from gridflow._agent import host_load
from suite.waiting import wait_for

EVERYWHERE = {
    "cpu_utilization_percentage",
    "system_memory_usage_megabytes",
    "system_memory_usage_percentage",
    "disk_usage_percentage",
    "network_receive_megabytes",
    "network_transmit_megabytes",
}


def loads(monkeypatch, folder, **options):
    """Return a load that is measured at each call."""
    monkeypatch.setattr(host_load, "LOAD_SECONDS", 0.0)
    monkeypatch.setattr(host_load, "_FIRST_SECONDS", 0.0)
    return host_load.HostLoad(folder, **options)


def test_a_host_without_gpus_tells_of_the_rest(monkeypatch, tmp_path):
    load = loads(monkeypatch, tmp_path, has_gpus=False)
    for _ in range(2):
        found = load.read()
        assert set(found) == EVERYWHERE
        assert all(0 <= found[name] <= 100 for name in found if name.endswith("_percentage"))
        assert found["system_memory_usage_megabytes"] > 0
    load.close()


def test_it_is_told_when_it_is_time(monkeypatch, tmp_path):
    now = [100.0]
    monkeypatch.setattr(host_load.time, "monotonic", lambda: now[0])
    load = host_load.HostLoad(tmp_path, has_gpus=False)
    told = []
    for now[0] in (100.5, 101.5, 105.0, 111.0, 111.6):
        told.append(bool(load.read()))
    assert told == [False, True, False, False, True]


def test_gpus_are_told_of_as_soon_as_they_have_been_asked(monkeypatch, tmp_path, host):
    rows = "0, 93, 4096, 16384\n1, [N/A], 0, 16384\n2, 5, [N/A], [N/A]\nno devices\n"
    (tmp_path / "bin" / "load.csv").write_text(rows)
    load = loads(monkeypatch, tmp_path, has_gpus=True)
    found = {}

    def has_answered():
        found.update({name: v for name, v in load.read().items() if name.startswith("gpu")})
        return bool(found)

    wait_for(has_answered, "an answer of nvidia-smi")
    load.close()
    assert found == {
        "gpu_0_utilization_percentage": 93.0,
        "gpu_0_memory_usage_percentage": 25.0,
        "gpu_1_memory_usage_percentage": 0.0,
        "gpu_2_utilization_percentage": 5.0,
    }


def test_a_host_whose_nvidia_smi_cant_be_started_tells_of_the_rest(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    load = loads(monkeypatch, tmp_path, has_gpus=True)
    assert [set(load.read()) for _ in range(2)] == [EVERYWHERE] * 2
    load.close()


def test_one_that_is_asked_at_the_end_is_ended(monkeypatch, tmp_path, host):
    script = tmp_path / "bin" / "nvidia-smi"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    load = loads(monkeypatch, tmp_path, has_gpus=True)
    assert set(load.read()) == set(load.read()) == EVERYWHERE
    load.close()  # the fixture that looks for leaks would find it
