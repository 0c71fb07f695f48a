"""``gridflow doctor``: what it finds, on real hosts and on those that it can only be told about."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

from gridflow._doctor import checks, cluster, host, machine, meeting
from gridflow._doctor.host import Unmet, look, within
from gridflow._doctor.meeting import Attendance, Meeting, attend
from gridflow._spec.exits import Exit
from gridflow._wire.mutual_tls import knock
from gridflow.cli import main
from suite.ports import free_ports
from suite.waiting import LONGEST, patience

HERE = "127.0.0.1"


def test_what_an_executor_has_seen_arrives_as_it_was():
    seen = cluster.Seen(host=look(), attendance=Attendance(task=1, executor="2"))
    assert cluster.read(msgspec.json.encode(seen).decode()) == seen


def levels(findings):
    return {finding.check: finding.level for finding in findings}


def java_that_says(tmp_path, text, code=0):
    path = tmp_path / "java" / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return str(path.parents[1])


def test_this_machine_is_fit(capsys):
    assert main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is True
    found = {each["check"]: each["found"] for each in record["findings"]}
    assert {"java", "python", "packages", "spool", "loopback", "address"} <= set(found)
    assert found["python"] == "Python {}.{}.{}".format(*sys.version_info[:3])


def test_an_error_has_a_line_on_how_to_mend_it_and_the_code_1(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", java_that_says(tmp_path, 'openjdk version "11.0.2" 2019-01-15'))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("error    java"))
    assert "Java 11" in lines[place]
    assert "→ install a JDK or JRE 17 or 21, and set JAVA_HOME to it" in lines[place + 1]
    assert lines[-1].endswith("1 error")


@pytest.mark.parametrize(
    ("says", "code", "level", "words"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, "ok", "Java 17"),
        ('java version "1.8.0_392"', 0, "error", "Java 8"),
        ('openjdk version "25" 2025-09-16', 0, "warning", "documented for 17 and 21"),
        ("something else", 0, "warning", "doesn't tell its version"),
        ("no such thing", 3, "error", "doesn't work"),
    ],
)
def test_java_is_compared_with_what_spark_needs(tmp_path, monkeypatch, says, code, level, words):
    monkeypatch.setenv("JAVA_HOME", java_that_says(tmp_path, says, code))
    finding = machine.java()
    assert (finding.level, words in finding.found) == (level, True)


def test_a_java_that_is_missing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine.java().level == "error"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is none" in machine.java().found


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        (
            {"unmet": (Unmet(package="keras", version="3.16.0", needed="<3.16", extra="jax"),)},
            "packages",
            "warning",
        ),
        (
            {
                "unmet": (
                    Unmet(
                        package="pyspark",
                        version="3.5.1",
                        needed=">=4.0",
                        extra="spark",
                        is_older=True,
                    ),
                )
            },
            "packages",
            "error",
        ),
        ({"unmet": (Unmet(package="msgspec", version="", needed=">=0.19"),)}, "packages", "error"),
        ({"spool_free": None}, "spool", "error"),
        ({"spool_free": 5 << 30}, "spool", "warning"),
        ({"spool_free": 5 << 20}, "spool", "error"),
        ({"shared_memory": None}, "shared memory", "warning"),
        ({"shared_memory": 64 << 20}, "shared memory", "warning"),
        ({"open_files": 256}, "open files", "warning"),
        ({"open_files": -1}, "open files", "ok"),
        ({"gpu_problem": "nvidia-smi isn't on the PATH"}, "gpus", "error"),
        ({"gpus": ("GPU 0 (80 GiB)",)}, "gpus", "ok"),
    ],
)
def test_what_a_host_lacks_is_found(change, check, level):
    sound = replace(look(), spool_free=1 << 40, shared_memory=1 << 30, open_files=4096, gpus=())
    assert set(levels(checks.each_host({"a": sound})).values()) == {"ok"}
    findings = checks.each_host({"a": replace(sound, **change)})
    (found,) = [finding for finding in findings if finding.check == check]
    assert found.level == level
    assert bool(found.mend) == (level != "ok")


def test_requirements_are_those_of_gridflow_itself(monkeypatch):
    """A release that is too old, one that is too new, one that is missing, and an extra's."""
    versions = {"numpy": "1.20", "pandas": "99", "pyspark": "3.5.1", "tqdm": ""}
    installed = host._installed
    monkeypatch.setattr(
        host, "_installed", lambda package: versions.get(package, installed(package))
    )
    unmet = {each.package: each for each in host._unmet()}
    assert set(unmet) == set(versions)
    assert {name for name, each in unmet.items() if each.is_older} == {"numpy", "pyspark", "tqdm"}
    assert unmet["pyspark"].extra == "spark"


def test_hosts_that_have_the_same_share_a_line():
    sound = replace(look(), open_files=4096)
    hosts = {"a": sound, "b": replace(sound, open_files=100), "c": sound}
    found = [f.found for f in checks.each_host(hosts) if f.check == "open files"]
    assert found == [
        "a process may have 1024 or more files open on a, c",
        "a process may have only 100 files open on b",
    ]


def test_versions_that_differ_are_told_as_a_job_tells_them():
    driver = look()
    other = replace(driver, versions={**driver.versions, "python": "3.13.1", "keras": "3.14.0"})
    (finding,) = checks.environments(driver, {"a": driver, "b": other}, "tensorflow")
    assert finding.level == "error"
    assert finding.found.startswith("b: it has keras 3.14.0, but worker:0 has")
    assert "python 3.13.1" in finding.found
    assert "gridflow env pack" in finding.mend
    without = replace(driver, versions={**driver.versions, "tensorflow": ""})
    (finding,) = checks.environments(driver, {"a": without}, "tensorflow")
    assert "TensorFlow is not installed" in finding.found
    assert levels(checks.environments(driver, {"a": driver}, "jax")) == {"environments": "ok"}


def test_time_zones_and_clocks_are_compared():
    here = replace(look(), zone="UTC (UTC+0000)")
    there = replace(here, zone="CET (UTC+0100)")
    assert levels(checks.zones({"a": here, "b": here}, "UTC")) == {"time zone": "ok"}
    (finding,) = checks.zones({"a": here, "b": there}, "UTC")
    assert finding.level == "warning"
    assert finding.found == "UTC (UTC+0000) on a; CET (UTC+0100) on b"

    def clock(ahead):
        (finding,) = checks.clocks({"a": Attendance(task=0, executor="0", ahead=ahead, unsure=0.5)})
        return finding.level, finding.found

    assert clock(1.2)[0] == "ok"  # its message may have taken that long
    assert clock(20.0) == ("warning", "20 s ahead of the driver's")
    assert clock(-7200.5) == ("error", "7,200 s behind the driver's")


def together(meeting, tasks, host=HERE):
    """Let tasks attend a meeting at the same time; return what they found out, by task."""
    found = {}

    def run(task):
        found[task] = attend(host, meeting.port, meeting.key, task, f"executor-{task // 2}")

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_tasks_meet_and_one_of_each_executor_tries_the_others(no_leaks):
    with Meeting(HERE, (0,), 4) as place:
        found = together(place, range(4))
    assert {task: len(each.peers) for task, each in found.items()} == {0: 1, 1: 0, 2: 1, 3: 0}
    assert {each.met for each in found.values()} == {4}
    assert {why for each in found.values() for why in each.peers.values()} == {""}
    assert all(abs(each.ahead) <= each.unsure + 0.1 for each in found.values())
    assert levels(checks.among_executors(found, 4)) == {"executors": "ok"}
    assert levels(checks.to_driver(found, "here")) == {"to the driver": "ok"}


def test_clocks_are_compared_by_the_fastest_answer(monkeypatch):
    now = iter([100.0, 102.0, 200.0, 200.5, 300.0, 301.0])
    theirs = iter(["96.0", "195.25", "295.0"])
    monkeypatch.setattr(meeting, "_READINGS", 3)
    monkeypatch.setattr(meeting, "time", SimpleNamespace(time=lambda: next(now)))
    monkeypatch.setattr(meeting, "_send", lambda there, message: None)
    monkeypatch.setattr(meeting, "_receive", lambda there, seconds: next(theirs))
    assert meeting._compare_clocks(object()) == (5.0, 0.25)


def test_an_executor_that_nobody_reaches_is_named(no_leaks, monkeypatch):
    """Its address is one where nothing listens, as behind a firewall that rejects."""
    dead = f"{HERE}:{free_ports(1)[0]}"
    monkeypatch.setattr(meeting, "_ANSWER_SECONDS", 1.0)
    with Meeting(HERE, (0,), 2) as place:

        def hidden():
            there = knock((HERE, place.port), place.key)
            meeting._compare_clocks(there)
            meeting._send(there, {"task": 1, "executor": "b", "address": dead})
            meeting._receive(there, 20.0)
            meeting._send(there, None)
            meeting._receive(there, 20.0)
            there.close()

        thread = threading.Thread(target=hidden)
        thread.start()
        found = attend(HERE, place.port, place.key, 0, "a")
        thread.join()
    assert "refused" in found.peers[dead]
    (finding,) = checks.among_executors({"executor a": found}, 2)
    assert (finding.level, dead in finding.found) == ("error", True)
    assert "firewall" in finding.mend


def test_a_driver_that_cant_be_reached_is_an_error(no_leaks):
    (port,) = free_ports(1)
    nowhere = attend(HERE, port, b"key", 0, "0")
    (finding,) = checks.to_driver({"executor 0": nowhere}, f"{HERE}:{port}")
    assert (finding.level, "refused" in finding.found) == ("error", True)
    assert checks.among_executors({"executor 0": nowhere}, 1) == []


def test_a_stranger_is_not_let_in(no_leaks):
    with Meeting(HERE, (0,), 1) as place:
        found = attend(HERE, place.port, b"another key", 0, "0")
        assert "key" in found.driver
        assert attend(HERE, place.port, place.key, 0, "0").met == 1


def test_a_task_that_never_comes_is_waited_for_for_a_while(no_leaks, monkeypatch):
    monkeypatch.setattr(meeting, "GATHER_SECONDS", 0.5)
    with Meeting(HERE, (0,), 2) as place:
        first = attend(HERE, place.port, place.key, 0, "0")
        late = attend(HERE, place.port, place.key, 1, "1")
    assert (first.met, late.met) == (1, 0)
    (finding,) = checks.among_executors({"0": first, "1": late}, 2)
    assert (finding.level, "only 0 of 2 tasks" in finding.found) == ("warning", True)


def test_a_shared_folder_is_one_in_which_the_drivers_file_is_seen(tmp_path):
    file = tmp_path / "there"
    file.write_text("content")
    found = look(shared={str(file): "content", str(tmp_path / "none"): "content"}).shared
    assert found[str(file)] == ""
    assert "isn't there" in found[str(tmp_path / "none")]
    assert "another file" in look(shared={str(file): "else"}).shared[str(file)]


def test_a_call_that_never_returns_is_left():
    over = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        within(0.1, over.wait)
    over.set()
    assert within(patience(), lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(patience(), lambda: 1 / 0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--shared", "/data"], "--shared and --port are about a cluster"),
        (["--conf", "master=local"], "spark.NAME=VALUE"),
        (["--conf", "spark.master=local", "--port", "x"], "port must be a number"),
        (["--conf", "spark.master=local", "--timeout", "0"], "--timeout must be more than 0"),
        (["no-such.yaml"], "can't be read"),
    ],
)
def test_bad_arguments_are_refused(capsys, words, reason):
    assert main(["doctor", *words]) == Exit.USAGE
    assert reason in capsys.readouterr().err


def test_no_setting_is_printed_that_may_hold_a_secret(capsys):
    assert main(["doctor", "--conf", "password=hunter2"]) == Exit.USAGE
    assert "hunter2" not in capsys.readouterr().err


def doctor(*words, **options):
    """Run the command in a process of its own; return its code and its findings."""
    done = subprocess.run(
        [sys.executable, "-m", "gridflow.cli", "doctor", "--json", *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LONGEST,
        check=False,
        **options,
    )
    return done.returncode, json.loads(done.stdout)["findings"]


@pytest.mark.slow
def test_a_cluster_is_looked_at_from_its_executors(tmp_path):
    """Two real executors; of two folders one is shared, and the job has too many tasks."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: flights\nimage: a\ncommand: [x]\nroles: {worker: {replicas: 5}}\n"
        "spark:\n  conf:\n    spark.master: 'local-cluster[2,1,800]'\n"
        "    spark.executor.memory: 800m\n"
    )
    code, findings = doctor(
        str(job), "--shared", str(tmp_path), "--shared", str(tmp_path / "not-there")
    )
    found = {}
    for finding in findings:
        found.setdefault(finding["check"], []).append((finding["level"], finding["found"]))
    assert code == 1
    assert found["slots"][0][0] == "error"
    assert "the job has 5 tasks" in found["slots"][0][1]
    assert found["executors"] == [("ok", "all 2 executors connect to each other")]
    assert found["clock"] == [("ok", "less than 1 s from the driver's")]
    assert [level for level, _ in found["to the driver"]] == ["ok"]
    assert [level for level, _ in found["environments"]] == ["ok"]
    assert [level for level, _ in found["shared folder"]] == ["ok", "error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


@pytest.mark.slow
def test_a_port_that_is_taken_is_an_error():
    with socket.create_server((HERE, 0)) as taken:
        port = str(taken.getsockname()[1])
        settings = ("spark.master=local[2]", f"spark.driver.host={HERE}", "spark.ui.enabled=false")
        words = [word for setting in settings for word in ("--conf", setting)]
        code, findings = doctor(*words, "--port", port)
    assert (code, findings[-1]["check"]) == (1, "to the driver")
    assert f"no free port on {HERE}" in findings[-1]["found"]


@pytest.mark.slow
def test_executors_whose_python_lacks_gridflow_are_an_error():
    code, findings = doctor(
        *("--conf", "spark.master=local[1]", "--conf", f"spark.driver.host={HERE}"),
        env={**os.environ, "PYSPARK_PYTHON": "/usr/bin/false"},
    )
    last = findings[-1]
    assert (code, last["check"], last["level"]) == (1, "spark", "error")
    assert "named by PYSPARK_PYTHON" in last["mend"]


@pytest.mark.slow
def test_a_cluster_that_never_answers_is_given_up_in_time():
    """Something listens as a master would, and says nothing."""
    with socket.create_server((HERE, 0)) as mute:
        code, (java, finding) = doctor(
            *("--conf", f"spark.master=spark://{HERE}:{mute.getsockname()[1]}"),
            *("--timeout", "15"),
            stderr=subprocess.DEVNULL,
        )
    assert (code, java["level"]) == (1, "ok")
    assert "after 15 s" in finding["found"]
