"""Writes what the locked environment is made of as a CycloneDX SBOM: `make sbom`. The same lock gives the same file.

Hashes are in the lock file, one for each file of a version. torch is not locked, so it has no version here.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.project.lock_file import LOCK_FILE, OURS, ROOT

_LOCKED = re.compile(r"^# for (?P<extras>.+)\n(?P<name>[\w.-]+)==(?P<version>\S+)", re.MULTILINE)


def sbom(lock, project):
    """Return the SBOM of the text of a lock file and of a pyproject.toml."""
    [version] = re.findall(r'^version = "(.+)"', project, re.MULTILINE)
    ours = _component(OURS, version) | {"licenses": [{"license": {"id": "MIT"}}]}
    parts = [
        _component(found["name"], found["version"])
        | {"properties": [{"name": f"{OURS}:extra", "value": one} for one in found["extras"].split()]}
        for found in _LOCKED.finditer(lock)
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ours | {"type": "application"}},
        "components": parts,
        "dependencies": [{"ref": ours["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _component(name, version):
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    found = sbom(LOCK_FILE.read_text("utf-8"), (ROOT / "pyproject.toml").read_text("utf-8"))
    target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"{target}: {len(found['components'])} packages")
