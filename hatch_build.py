"""What the wheel carries besides Python: the TFRecord jar, and the exchange of gradients in C.

This hook builds them, the jar only where it isn't up to date.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

JAR = "gridflow-tfrecord.jar"
NATIVE = Path("gridflow", "_collectives", "native")


class InTheWheel(BuildHookInterface[Any]):
    """Put the jar beside ``gridflow/tfrecord/jars.py``, where ``tfrecord.jar()`` looks first."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the jar and the libraries to what the wheel holds.

        Without a C compiler there are no libraries, and everything works, if more slowly.
        Without Maven there is a warning and a wheel without the jar: all but Spark's data source
        and Hadoop's formats works, and ``tfrecord.jar()`` says what is missing.
        """
        native = runpy.run_path(str(Path(self.root, "src", NATIVE, "build.py")))
        libraries = native["build"]()
        if version == "editable":
            return  # All is found in the source tree, the jar as soon as Maven has left it there.
        for built in libraries:
            build_data["force_include"][str(built)] = str(NATIVE / built.name)
        java = Path(self.root, "java")
        jar = java / "target" / JAR
        if not is_up_to_date(jar, java) and not self.build(java):
            return
        build_data["force_include"][str(jar)] = f"gridflow/tfrecord/{JAR}"

    def build(self, java: Path) -> bool:
        """Run Maven and return whether there was one."""
        maven = shutil.which(os.environ.get("MVN", "mvn"))
        if maven is None:
            self.app.display_warning(
                f"Maven is not installed, so this wheel has no {JAR}: spark.read.format('tfrecord')"
                " won't work with it. Install Maven and JDK 17 (or point the variable MVN to 'mvn')"
                " and build again."
            )
            return False
        self.app.display_info(f"Building {JAR} with Maven")
        command = [maven, "-B", "-q", "-f", str(java / "pom.xml"), "package"]
        subprocess.run([*command, "-Dmaven.test.skip=true"], check=True)
        return True


def is_up_to_date(jar: Path, java: Path) -> bool:
    """Return whether the jar is there and younger than all that it is made of."""
    if not jar.is_file():
        return False
    sources = [java / "pom.xml", *(java / "src" / "main").rglob("*")]
    return jar.stat().st_mtime >= max(p.stat().st_mtime for p in sources if p.is_file())
