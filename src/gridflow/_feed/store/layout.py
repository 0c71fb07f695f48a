"""How a spool lies on disk: what its writer and its reader agree on."""

from typing import Final

MANIFEST: Final = "manifest.json"
FORMAT: Final = 2
