"""Modules beside the script: which travel with a job, and how a task finds them."""

from __future__ import annotations

import builtins
import subprocess
import sys
import zipfile
from io import BytesIO

import pytest

from gridflow import LocalLauncher, TensorflowDistributor
from gridflow._spec import program


@pytest.fixture
def project(tmp_path):
    """Lay out a script's folder with what people keep there."""
    folder = tmp_path / "project"
    files = {
        "job.py": "",
        "single.py": "NAME = 'single'\n",
        "mypkg/__init__.py": "",
        "mypkg/consts.py": "X = 41\n",
        "mypkg/deep/__init__.py": "",
        "mypkg/deep/names.json": '{"answer": 1}',
        "mypkg/deep/more/words.txt": "words",
        "mypkg/train.py": "def train(ctx):\n    from .consts import X\n    return X + 1\n",
        "space/part.py": "PART = 'of a namespace'\n",
        "space/notes.txt": "no module",
        "data.csv": "1,2",
        ".venv/lib/python3.11/site-packages/other.py": "",
        "env/pyvenv.cfg": "",
        "env/x.py": "",
        "mypkg/__pycache__/consts.pyc": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "mypkg" / "weights.bin").write_bytes(bytes(2 << 20))
    return folder


def names(archive):
    return set(zipfile.ZipFile(BytesIO(archive)).namelist())


def test_modules_packages_and_their_small_files_are_packed(project):
    assert names(program.pack(project)) == {
        "job.py",
        "single.py",
        "mypkg/__init__.py",
        "mypkg/consts.py",
        "mypkg/train.py",
        "mypkg/deep/__init__.py",
        "mypkg/deep/names.json",
        "mypkg/deep/more/words.txt",
        "space/part.py",
    }


def test_a_folder_with_too_much_is_left_out_with_a_warning(project, monkeypatch):
    monkeypatch.setattr(program, "_MOST_FILES", 3)
    with pytest.warns(UserWarning, match=r"modules in .*project are not sent .* --py-files"):
        assert program.pack(project) == b""


def test_a_link_that_leads_back_ends(project):
    (project / "mypkg" / "loop").symlink_to(project)
    assert "mypkg/consts.py" in names(program.pack(project))


def test_files_that_vanish_meanwhile_are_left_out(project, monkeypatch):
    find = program._importable

    def importable(*arguments):
        for path in find(*arguments):
            yield path
            if path.name == "single.py":  # it has been looked at
                path.unlink()
        yield project / "gone.py"

    monkeypatch.setattr(program, "_importable", importable)
    packed = names(program.pack(project))
    assert "job.py" in packed
    assert not packed & {"single.py", "gone.py"}


def test_what_this_python_can_import_from_the_folder_itself_is_not_unpacked(
    project, tmp_path, monkeypatch
):
    (tmp_path / "packed").write_bytes(program.pack(project))
    program.unpack(tmp_path / "packed", tmp_path / "there")
    assert (tmp_path / "there" / "mypkg" / "consts.py").is_file()
    monkeypatch.syspath_prepend(str(project))
    program.unpack(tmp_path / "packed", tmp_path / "not there")
    assert not (tmp_path / "not there").exists()


def test_the_folder_is_that_of_the_script_and_none_for_an_installed_program(project, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(project), "/elsewhere"])
    assert program.script_folder() == project.resolve()
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", ["/usr/lib/python311.zip", "", "/elsewhere"])
    assert program.script_folder() == project.resolve()
    monkeypatch.setattr(sys, "path", ["/usr/lib/python311.zip", "/elsewhere"])
    assert program.script_folder() is None
    monkeypatch.setattr(sys, "path", [str(project / ".venv/lib/python3.11/site-packages")])
    assert program.script_folder() is None


def test_a_notebooks_folder_is_its_own_whatever_pythonpath_says(project, tmp_path, monkeypatch):
    # IPython puts the working directory behind what comes from PYTHONPATH.
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/usr/lib/python311.zip", "", "/elsewhere"])
    assert program.script_folder() == tmp_path.resolve()  # a script, in its own folder
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    assert program.script_folder() == project.resolve()
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])  # of a service's notebooks
    assert program.script_folder() == tmp_path.resolve()


def test_a_task_on_spark_imports_what_lies_beside_the_script(
    project, spark, by_value, no_leaks, monkeypatch
):
    from gridflow import SparkLauncher

    def train():
        import json
        import subprocess
        import sys
        from pathlib import Path

        import mypkg.deep
        import single
        from mypkg.consts import X
        from space.part import PART

        names = Path(mypkg.deep.__file__).with_name("names.json").read_text()
        child = subprocess.check_output([sys.executable, "-c", "import single; print(single.NAME)"])
        return [X, single.NAME, PART, json.loads(names), child.decode().strip()]

    monkeypatch.syspath_prepend(str(project))
    quiet = {"launcher": SparkLauncher(spark), "logs": "none", "progress": False}
    found = TensorflowDistributor(**quiet).run(train).value
    assert found == [41, "single", "of a namespace", {"answer": 1}, "single"]
    from mypkg.train import train as of_a_package

    assert TensorflowDistributor(**quiet).run(of_a_package).value == 42
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypkg"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
def test_a_script_that_is_run_imports_what_lies_beside_it(project, no_leaks):
    (project / "job.py").write_text("import single, mypkg.consts\nprint('X', mypkg.consts.X)\n")
    quiet = {"launcher": LocalLauncher(), "logs": "none", "progress": False}
    assert "X 41" in TensorflowDistributor(**quiet).run(project / "job.py").logs(0)


def test_a_notebooks_folder_is_found_without_a_script(project):
    code = "import sys; from gridflow._spec import program; print(program.script_folder())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(project.resolve())
