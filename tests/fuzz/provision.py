"""Getting atheris: as it is, from PyPI, or built with Debian's clang.

python -m tests.fuzz.provision    installs it for the Python that runs this, or says what is missing
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import sys

ATHERIS = "atheris==3.0.0"
_CLANG = "14"
"""The clang that Debian 12 has and atheris builds with."""
_PACKAGES = (f"clang-{_CLANG}", f"libclang-rt-{_CLANG}-dev", f"libfuzzer-{_CLANG}-dev")


def has_atheris() -> bool:
    """Say whether atheris can be imported."""
    return importlib.util.find_spec("atheris") is not None


def main() -> int:
    """Install atheris; 1 where that cannot be done, with the reason."""
    if has_atheris():
        return 0
    why = _install("--only-binary=:all:")
    if why is None:
        return 0
    print(f"No wheel of {ATHERIS} could be had: {why}", file=sys.stderr)
    if _library() is None:
        _install_clang()
    library, clang = _library(), shutil.which(f"clang-{_CLANG}")
    if library is None or clang is None:
        print(
            f"It can be built where these are installed: apt install {' '.join(_PACKAGES)}", file=sys.stderr
        )
        return 1
    print("Building it, which takes about ten minutes.", file=sys.stderr)
    why = _install("--no-binary=atheris", CLANG_BIN=clang, LIBFUZZER_LIB=library)
    if why is not None:
        print(f"It could not be built: {why}", file=sys.stderr)
    return 0 if why is None else 1


def _install(which: str, **environment: str) -> str | None:
    """Install it with pip; return the reason of a failure, from pip's last line."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, which, ATHERIS], env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    return (errors or done.stderr.splitlines() or [f"pip ended with {done.returncode}"])[-1]


def _library() -> str | None:
    pattern = f"/usr/lib/llvm-{_CLANG}/lib/clang/*/lib/linux/libclang_rt.fuzzer_no_main-*.a"
    return next(iter(glob.glob(pattern)), None)


def _install_clang() -> None:
    if shutil.which("apt-get") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *_PACKAGES]):
        subprocess.run(
            ["apt-get", "-qq", *command], env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )


if __name__ == "__main__":
    sys.exit(main())
