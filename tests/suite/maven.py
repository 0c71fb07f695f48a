"""Jars that tests start, or give to Spark, from a ``pom.xml`` with a profile for each use."""

from __future__ import annotations

import shutil
import subprocess


def fetch(pom, folder, jars):
    """Copy the jars of each profile into a folder of its name, unless they are there.

    Parameters
    ----------
    pom, folder : Path
    jars : dict of str
        By profile, the pattern of a jar by which it is known that they are. With its version:
        what lies there of another one is deleted.
    """
    for profile, jar in jars.items():
        if not any((folder / profile).glob(jar)):
            shutil.rmtree(folder / profile, ignore_errors=True)
            words = ["mvn", "-q", "-f", str(pom), "-P", profile, "dependency:copy-dependencies"]
            words += ["-DincludeScope=runtime", f"-DoutputDirectory={folder / profile}"]
            subprocess.run(words, check=True)
    return folder
