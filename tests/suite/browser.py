"""Chromium, which the tests of the site look with: ``make browser``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
#: It only recommends fonts, and without any there are no letters.
PACKAGES = ("chromium", "fonts-dejavu-core", "fonts-liberation")
HOW = f"install it with 'make browser' as root, or with 'apt-get install {' '.join(PACKAGES)}'"


def find():
    """Return the path of this machine's Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def install():
    """Install Debian's Chromium where there is none; return its path, or None."""
    if find() is None and shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        words = ("install", "--yes", "--quiet", "--no-install-recommends", *PACKAGES)
        for each in (("update", "--quiet"), words):
            # What it says doesn't belong to what a test run prints, unless it fails.
            subprocess.run(["apt-get", *each], env=environment, stdout=sys.stderr, check=False)
    return find()


if __name__ == "__main__":
    if install() is None:
        print(f"there is no Chromium, so the tests of the site are skipped: {HOW}")
