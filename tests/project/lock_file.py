"""Writes the lock file of this Python and system: the exact packages `make` installs, with the hashes of their files.

`make lock` runs it. Versions are those in .venv, which the tests have passed with; hashes are those of the
files that PyPI has of them. torch is left out: some machines install a build for CPUs alone from another place,
with the same version and another hash. requirements/constraints.txt pins it.
"""

from __future__ import annotations

import html
import platform
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
INDEX = "https://pypi.org/simple"
PATIENCE_S = 60
OURS = "ai-toolkit-telemetry"
NOT_LOCKED = re.compile(rf"{OURS}|torch|triton|cuda-.*|nvidia-(?!ml-py).*")
SYSTEM = f"{sys.version_info[0]}.{sys.version_info[1]}-{sys.platform}-{platform.machine().lower()}"
"""As in the Makefile, which installs the file."""

HERE = {(tag.interpreter, tag.abi) for tag in sys_tags()}

HEAD = """\
# Written by `make lock`. `make` installs this with Python {version} on {system}, and refuses a file with another hash.
# Not here: torch, which some machines have as a build for CPUs alone, with the same version and another hash.
# It is pinned in constraints.txt, and what only it needs, such as CUDA, follows from its version.
"""


def lock_file():
    """Return where the lock file of this Python and system is, whether or not there is one."""
    return ROOT / "requirements" / f"lock-{SYSTEM}.txt"


def installed(extras):
    """Return name and version of each installed package that our `extras` need, directly or through another."""
    found, waiting = {}, [(OURS, extras)]
    seen = set()
    while waiting:
        name, with_extras = waiting.pop()
        if (name, with_extras) in seen:
            continue
        seen.add((name, with_extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is not installed here; run `make check` first") from None
        found[name] = package.version
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in with_extras or {""}):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name: found[name] for name in sorted(found) if not NOT_LOCKED.fullmatch(name)}


def hashes(name, version):
    """Return the SHA-256 of each wheel on PyPI that this Python could install; of the source if there is none."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=PATIENCE_S) as page:
        links = [
            urlsplit(html.unescape(link)) for link in re.findall(r'href="([^"]+)"', page.read().decode())
        ]
    files = {unquote(link.path).rpartition("/")[2]: link.fragment.removeprefix("sha256=") for link in links}
    wheels = [found for file, found in files.items() if file.endswith(".whl") and fits(file, name, version)]
    source = re.compile(rf"{name.replace('-', '[-_.]')}-{re.escape(version)}\.(tar\.gz|zip)", re.IGNORECASE)
    return sorted(wheels or [found for file, found in files.items() if source.fullmatch(file)])


def fits(file, name, version):
    """Whether a wheel is of this version, and for this Python, system and processor, with any C library."""
    try:
        of, its_version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    return (of, str(its_version)) == (name, version) and any(
        (tag.interpreter, tag.abi) in HERE
        and (tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(platform.machine())))
        for tag in tags
    )


def locked(packages):
    """Return the text of the lock file."""
    version, _, system = SYSTEM.partition("-")
    with ThreadPoolExecutor(8) as threads:
        of_all = list(threads.map(lambda item: hashes(*item), packages.items()))
    lines = []
    for (name, its_version), of_one in zip(packages.items(), of_all, strict=True):
        if not of_one:
            raise SystemExit(f"{INDEX}/{name}/ has no file of version {its_version}")
        lines.append(
            " \\\n    ".join([f"{name}=={its_version}", *(f"--hash=sha256:{found}" for found in of_one)])
        )
    return HEAD.format(version=version, system=system) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = locked(installed(frozenset(sys.argv[1].split(","))))
    lock_file().write_text(text, encoding="utf-8")
    print(f"Wrote {lock_file().relative_to(ROOT)}")
