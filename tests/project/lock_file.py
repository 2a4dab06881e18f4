"""Writes the lock file: the exact packages `make` installs on Linux, with the hashes of their files.

`make lock` runs it. Versions are those in .venv, which the tests have passed with; hashes are those of the files that
PyPI has of them for each Python and processor in TARGETS. torch is left out: some machines install a build for CPUs
alone from another place, with the same version and another hash. requirements/constraints.txt pins it.
"""

from __future__ import annotations

import html
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
LOCK_FILE = ROOT / "requirements" / "lock-linux.txt"
"""As in the Makefile, which installs it."""
INDEX = "https://pypi.org/simple"
PATIENCE_S = 60
OURS = "ai-toolkit-telemetry"
NOT_LOCKED = re.compile(rf"{OURS}|torch|triton|cuda-.*|nvidia-(?!ml-py).*")
PYTHONS = ((3, 11), (3, 12), (3, 13))
MACHINES = ("x86_64", "aarch64")
TARGETS = [(python, machine) for python in PYTHONS for machine in MACHINES]

HEAD = f"""\
# Written by `make lock`. `make` installs what its extras need from here, and refuses a file with another hash.
# is for {" ".join(f"{major}.{minor}-linux-{machine}" for (major, minor), machine in TARGETS)}
# On other systems the newest versions are installed.
# Not here: torch, which some machines have as a build for CPUs alone, with the same version and another hash.
# It is pinned in constraints.txt, and what only it needs, such as CUDA, follows from its version.
"""


def installed(extras):
    """Return the version and the extras of each installed package that these need, directly or through another."""
    found = {}
    for extra in sorted(extras):
        for name in closure(extra):
            if not NOT_LOCKED.fullmatch(name):
                found.setdefault(name, (distribution(name).version, []))[1].append(extra)
    return dict(sorted(found.items()))


def closure(extra):
    """Return the names of the installed packages that one of our extras needs."""
    waiting, seen = [(OURS, frozenset({extra}))], set()
    while waiting:
        name, with_extras = waiting.pop()
        if (name, with_extras) in seen:
            continue
        seen.add((name, with_extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed here; run `make check` first") from None
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": one}) for one in with_extras or {""}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen}


def hashes(name, version):
    """Return the SHA-256 of each wheel on PyPI that a target could install; of the source where one has no wheel."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=PATIENCE_S) as page:
        links = [
            urlsplit(html.unescape(link)) for link in re.findall(r'href="([^"]+)"', page.read().decode())
        ]
    files = {unquote(link.path).rpartition("/")[2]: link.fragment.removeprefix("sha256=") for link in links}
    source = re.compile(rf"{name.replace('-', '[-_.]')}-{re.escape(version)}\.(tar\.gz|zip)", re.IGNORECASE)
    chosen = set()
    for target in TARGETS:
        wheels = [file for file in files if file.endswith(".whl") and fits(file, name, version, target)]
        found = wheels or [*filter(source.fullmatch, files)]
        if not found:
            raise SystemExit(f"{INDEX}/{name}/ has no file of version {version} for {target}")
        chosen.update(found)
    return sorted(files[file] for file in chosen)


def fits(file, name, version, target):
    """Whether a wheel is of this version, and for this Python and processor on Linux, with any C library."""
    try:
        of, its_version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    python, machine = target
    return (of, str(its_version)) == (name, version) and any(
        (tag.interpreter, tag.abi) in _ABIS[python]
        and (tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(machine)))
        for tag in tags
    )


_ABIS = {
    python: {
        (tag.interpreter, tag.abi)
        for tags in (
            cpython_tags(python, platforms=["x"]),
            compatible_tags(python, f"cp{python[0]}{python[1]}", ["x"]),
        )
        for tag in tags
    }
    for python in PYTHONS
}


def locked(packages):
    """Return the text of the lock file: before each package, the extras that need it."""
    with ThreadPoolExecutor(8) as threads:
        of_all = list(threads.map(lambda item: hashes(item[0], item[1][0]), packages.items()))
    lines = []
    for (name, (version, extras)), of_one in zip(packages.items(), of_all, strict=True):
        lines.append(f"# for {' '.join(extras)}")
        lines.append(
            " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{found}" for found in of_one)])
        )
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    LOCK_FILE.write_text(locked(installed(sys.argv[1].split(","))), encoding="utf-8")
    print(f"Wrote {LOCK_FILE.relative_to(ROOT)}")
