"""gridflow env pack: an environment that runs where it was never made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import venv

import pytest

from gridflow import cli, errors
from gridflow._spec.exits import Exit
from gridflow.deploy import environments


def make(folder):
    """Make a small environment, with a package of a clone, a package of its own and a script."""
    venv.create(folder / "made", symlinks=True)
    (packages,) = (folder / "made").glob("lib/python*/site-packages")
    (packages / "plain.py").write_text("X = 7\n")
    (folder / "clone" / "edited").mkdir(parents=True)
    (folder / "clone" / "edited" / "__init__.py").write_text("Y = 8\n")
    (packages / "edited.pth").write_text(f"{folder}/clone\n")
    (packages / "more.pth").write_text("# a comment\nimport sys; sys.by_pth = 9\n")
    tool = folder / "made" / "bin" / "tool"
    tool.write_text(f"#!{folder}/made/bin/python\nimport plain, edited; print(plain.X, edited.Y)\n")
    tool.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of an environment."""
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Pack one, let the original vanish, and unpack it elsewhere."""
    folder = make(tmp_path_factory.mktemp("packed"))
    words = ["env", "pack", "--prefix", str(folder / "made"), "-o", str(folder / "env.tar.gz")]
    assert cli.main(words) == 0
    shutil.rmtree(folder / "made")
    shutil.rmtree(folder / "clone")
    with tarfile.open(folder / "env.tar.gz") as archive:
        archive.extractall(folder / "elsewhere", filter="tar")
    return folder / "elsewhere"


def said_by(*words):
    """Return what a command prints that knows nothing of this process."""
    words = list(map(str, words))
    return subprocess.run(words, env={}, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow  # packs and unpacks an interpreter
def test_it_runs_elsewhere_with_all_that_it_had(unpacked):
    code = (
        "import ctypes, json, os, plain, edited, ssl, sys\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "places = [os.__file__, json.__file__, plain.__file__, edited.__file__, sys.executable]\n"
        "places += [each for each in maps if 'libpython' in each]\n"
        "print(json.dumps([places, sys.prefix, sys.base_prefix, sys.by_pth, sys.version]))"
    )
    said = said_by(unpacked / "bin" / "python", "-c", code)
    places, prefix, base, by_pth, version = json.loads(said)
    assert [each for each in places if not each.startswith(str(unpacked))] == []
    assert (prefix, base) == (str(unpacked), str(unpacked))
    assert by_pth == 9
    assert version == sys.version


@pytest.mark.slow  # packs and unpacks an interpreter
def test_its_scripts_run_by_its_own_python_even_by_a_link(unpacked, tmp_path):
    assert said_by(unpacked / "bin" / "tool") == "7 8\n"
    (tmp_path / "link").symlink_to(unpacked / "bin" / "tool")
    assert said_by(tmp_path / "link") == "7 8\n"


@pytest.mark.slow  # packs and unpacks an interpreter
def test_a_child_of_it_is_it_too(unpacked):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import plain'], check=1)"
    said_by(unpacked / "bin" / "python3", "-c", code)


def test_the_settings_are_printed_for_each_cluster(folder, capsys, monkeypatch):
    monkeypatch.setattr(environments, "pack", lambda facts, output: output.touch())
    place = folder / "other.tar.gz"
    words = ["env", "pack", "--prefix", str(folder / "made"), "-o", str(place)]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    for cluster in ("YARN in cluster mode", "standalone", "Kubernetes"):
        assert f"{cluster}" in out
    assert f"--conf spark.archives={place}#environment" in out
    assert "export PYSPARK_PYTHON=./environment/bin/python" in out
    assert "has no gridflow, which the executors need" in err
    assert cli.main([*words, "--json", "--force"]) == 0
    assert json.loads(capsys.readouterr().out)["archive"] == str(place)
    assert cli.main(words) == Exit.USAGE
    assert "Overwrite it with --force" in capsys.readouterr().err


def test_a_package_that_only_an_import_hook_finds_is_told(folder):
    facts = environments.look_at(folder / "made")
    hook = environments.Path(facts.packages[0], "__editable___mine_0_1_finder.py")
    hook.touch()
    assert any(hook.name in line for line in environments.lacks(facts))
    hook.unlink()
    assert not any(hook.name in line for line in environments.lacks(facts))


def test_what_is_no_virtual_environment_is_refused(tmp_path, folder):
    with pytest.raises(errors.InvalidArgument, match="is not a virtual environment"):
        environments.look_at(tmp_path)
    facts = environments.look_at(folder / "made")
    with pytest.raises(errors.InvalidArgument, match="conda-pack"):
        environments.look_at(environments.Path(facts.base))
    with pytest.raises(errors.InvalidArgument, match=r"\.tar\.gz"):
        environments.pack(facts, tmp_path / "env.zip")
    with pytest.raises(errors.InvalidArgument, match="can't be written"):
        environments.pack(facts, tmp_path / "no" / "env.tar.gz")
