"""Finds paths in a text, and decides how much of each may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from toolkit.core.formatting import words
from toolkit.privacy.harmless_words import EXTENSIONS, has_known_extension, is_plain
from toolkit.privacy.pseudonyms import PLACEHOLDER

ReplacePath = Callable[[str], str]
"""Called with the private part of a normalised path, returns the replacement."""


def replace_paths(text: str, replace: ReplacePath) -> str:
    """Return `text` with the private part of each path in it replaced.

    Paths are absolute ones of POSIX and Windows, network shares, those starting with `~`, `$HOME` or `../`, file and
    storage URLs, and any that contain a home folder. A quoted one may contain spaces.
    """
    if "%2F" in text or "%5C" in text or "%2f" in text or "%5c" in text:
        text = _URL_ENCODED.sub(lambda match: _shown_encoded(match, replace), text)
    text = _FRAME.sub(lambda match: _shown_frame(match, replace), text)
    if "/" not in text and "\\" not in text:
        return text
    if ":" in text:
        text = _STORAGE_URL.sub(lambda match: _shown_url(match, replace), text)
    text = _QUOTED.sub(lambda match: _shown_quoted(match, replace), text)
    if "\\" in text or ":/" in text:
        text = _WINDOWS.sub(lambda match: _shown_match(match, replace), text)
    if "/" in text:
        text = _POSIX.sub(lambda match: _shown_posix(match, replace), text)
        if "home/" in text or "Users/" in text:
            text = _THROUGH_A_HOME.sub(lambda match: _shown_match(match, replace), text)
    return _GOING_UP.sub(lambda match: _shown_match(match, replace), text) if ".." in text else text


def shown_path(path: str, replace: ReplacePath) -> str:
    """Return what may be shown of `path`: all from `site-packages` or the standard library on, or a plain file name."""
    if path in _PUBLIC:
        return path
    plain = _in_one_form(path)
    if (plain.count("/") == 1 and is_plain(plain[1:])) or is_of_the_system(plain):
        return path
    folder, tail = _split_library(plain if plain.startswith("/") or ":" in plain else f"/{plain}")
    if tail:
        if is_prefix_of_a_python(folder):
            return plain
        return f"{replace(folder)}/{tail}" if folder else tail
    folder, _, name = plain.rpartition("/")
    if folder and is_plain(name):
        return f"{replace(folder)}/{name}"
    extension = f".{name.rpartition('.')[2]}" if "." in name and has_known_extension(name) else ""
    return replace(plain) + extension


def is_relative_path(text: str) -> bool:
    """Return whether the value of a path setting contains anything private."""
    if not text or len(text) > _LONGEST or "\n" in text or PLACEHOLDER.search(text) or "://" in text:
        return False
    parts = [part for part in re.split(r"[/\\]", text) if part not in ("", ".")]
    return not all(map(is_plain, parts))


# ------------------------------------------------------------ where they begin and end

_LONGEST: Final = 4096

# \\server\share: the backslashes double each time the text is quoted inside another.
_SHARE = "|".join(
    rf"(?<!\\)\\{{{2 * n}}}(?:[\w.$-]{{2,255}}|\?\\{{{n}}}(?:[A-Za-z]:|UNC))\\{{{n}}}(?!\\)"
    for n in (1, 2, 4, 8)
)
_START = (
    rf"(?:/(?![/\s*])|//(?=[\w.-]{{1,255}}/)|~[\w.-]{{0,64}}[/\\]|[A-Za-z]:[\\/]|{_SHARE}"
    r"|\$\{?[A-Z_a-z]{1,32}\}?/|%[A-Z_]{1,32}%\\|\.\.[/\\])"
)
# From one quote to the next. The quotes may be escaped, if the whole text is.
_QUOTED = re.compile(
    rf"""(?P<quote>["'`])(?P<path>{_START}(?:(?!(?P=quote))[^\n\r]){{0,{_LONGEST}}})(?=(?P=quote))"""
)

# A colon or comma ends a path if a line number, a space or another path follows.
_BODY = r"""(?:\\\ |(?!;|[:,](?:[\s\d/~$]|\Z|[A-Za-z]:[\\/]))[^\s"'`<>|])"""
# "Application Support/x": words with a capital, the last of which a slash follows.
_SPACED = rf"""(?:(?:[ ](?:-[ ])?(?![A-Z]{{2,8}}/)[A-Z][\w.&-]{{0,40}}){{1,3}}/{_BODY}+)"""
# "My Report.txt"
_ENDING = "|".join(sorted(EXTENSIONS))
_SPACED_FILE = rf"""(?:(?:[ ][A-Z][\w&-]{{0,40}}){{0,2}}[ ][A-Z][\w&-]{{0,40}}\.(?:{_ENDING})(?!\w))"""
_POSIX = re.compile(
    rf"""(?:(?<![\w.~%$@*+/\\)\]}}>-])|(?<=\s-[A-Za-z])|(?<=[@>]))
    (?P<path>(?:(?<!:)//(?=[\w.-]{{1,64}}/)|/(?![/\s*])|~[\w.-]{{0,64}}/|\$\{{?[A-Za-z_]{{1,32}}\}}?/)
    {_BODY}+{_SPACED}{{0,3}}{_SPACED_FILE}?)""",
    re.VERBOSE,
)
_WINDOWS = re.compile(
    rf"""(?<![A-Za-z0-9])(?P<path>
      (?:[A-Za-z]:\\{{1,8}}|%[A-Z_]{{1,32}}%\\{{1,8}}|{_SHARE})
      (?:(?:(?![,;]\s?\\)[^\\/:*?"'<>|\r\n]){{1,255}}\\{{1,8}}){{0,64}}[^\s\\/:*?"'<>|,;)\]}}]{{0,255}}
    | [A-Za-z]:/(?!/)[^\s"'<>|*?,;)\]}}]{{1,{_LONGEST}}}
    | ~[\w.-]{{0,64}}\\[^\s"'<>|*?,;)\]}}]{{1,{_LONGEST}}}
    )""",
    re.VERBOSE,
)
_WORD_START = r"""(?<![^\s"'`<>|=:,;()\[\]{}])"""
_GOING_UP = re.compile(
    rf"""{_WORD_START}(?P<path>[^\s"'`<>|=:,;()\[\]{{}}]{{0,512}}?\.\.[/\\][^\s"'`<>|]{{1,{_LONGEST}}})"""
)
_THROUGH_A_HOME = re.compile(
    rf"""{_WORD_START}(?P<path>(?:[\w.@+-]{{1,128}}/){{0,32}}(?:home|Users)/[\w.-]{{1,64}}/[^\s"'`<>|]{{0,{_LONGEST}}})"""
)
_STORAGE_URL = re.compile(
    rf"""(?<![\w+.-])(?P<scheme>(?:file|s3a?|gs|gcs|r2|az|adl|abfss?|wasbs?|hdfs|viewfs|dbfs|nfs|smb|cifs|afp|sftp|scp
    |sqlite(?:\+\w{{1,16}})?|oss|cos|obs|b2|weka|lustre|ceph|minio|swift|azureml|hf|mlflow-artifacts|vscode(?:-remote)?)
    :/{{1,4}})(?P<path>[^\s"'`<>|]{{1,{_LONGEST}}})""",
    re.VERBOSE | re.IGNORECASE,
)
_URL_ENCODED = re.compile(r"(?:[A-Za-z]%3A)?(?:%2F|%5C)(?:[\w.~+-]|%[0-9A-Fa-f]{2}){1,4096}", re.IGNORECASE)
# "pkg/x.py:12 in main", "pkg/x.py:12: UserWarning" and 'File "pkg/x.py", line 12': a stack's files may be relative.
_FRAME = re.compile(
    r"""^(?P<path>[^\s:"'<>]{1,512})(?=:[0-9]{1,7}(?:[ ]in[ ]|:[ ]\w{0,80}(?:Warning|Error)\b))
    |(?P<file>\bFile[ ]\\{0,3}")(?P<quoted>[^"<>\n]{1,1024}?)(?=\\{0,3}",[ ]line[ ])""",
    re.MULTILINE | re.VERBOSE,
)
# </s>, and the tags of chat templates.
_TAG = re.compile(
    r"</[A-Za-z][A-Za-z0-9_|]{0,15}>"
    r"|\[/(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|MODEL_SETTINGS|THINK|IMG)\]"
)
_PLACEHOLDER_IN_FRONT = re.compile(PLACEHOLDER.pattern + r"\Z")
_TRAILING: Final = ".,;:!?)]}\\"

# ------------------------------------------------------------ what is shown

_PUBLIC: Final = words(
    """
    / /dev/null /dev/zero /dev/shm /dev/stdin /dev/stdout /dev/stderr /dev/urandom /usr/bin/env
    /usr/bin/python /usr/bin/python3 /bin/sh /bin/bash /proc/meminfo /proc/cpuinfo /s /it /sec /step
    /iter /img /token /n
    """
)
_LIBRARY = re.compile(
    r"""(?P<folder>.*?)/(?P<tail>(?:site-packages|dist-packages|lib(?:64)?/python[23](?:\.\d{1,2})?|Lib)
    (?:/[\w.+-]{1,120}){1,24})""",
    re.VERBOSE,
)
_CODE: Final = frozenset({"py", "pyi", "pyx", "so", "pyd", "pyc", "cu", "cuh", "cpp", "h", "c", "dll"})


def _split_library(path: str) -> tuple[str, str]:
    """Return the folder of an installed package, and the part of `path` below it, which is empty for any other path."""
    # The last of them: an environment's packages are below its own lib/python3.
    for mark in ("/site-packages/", "/dist-packages/"):
        at = path.rfind(mark)
        if at >= 0:
            return _library_of(path[:at], path[at + 1 :])
    match = _LIBRARY.fullmatch(path)
    return _library_of(match["folder"], match["tail"]) if match else ("", "")


def _library_of(folder: str, tail: str) -> tuple[str, str]:
    name = tail.rpartition("/")[2]
    is_code = "." not in name or name.rpartition(".")[2].lower() in _CODE
    return (folder, tail) if is_code and ".." not in tail and _LIBRARY.fullmatch(f"/{tail}") else ("", "")


@lru_cache(maxsize=1024)
def _in_one_form(path: str) -> str:
    """Return `path` with single forward slashes, so that two spellings of it are equal."""
    plain = re.sub(r"[/\\]+", "/", path.replace("\\ ", " "))
    return plain.rstrip("/") or "/"


def _shown_match(match: re.Match[str], replace: ReplacePath) -> str:
    path = match["path"]
    kept = path.rstrip(_TRAILING)
    return shown_path(kept, replace) + path[len(kept) :] if kept else path


def _shown_posix(match: re.Match[str], replace: ReplacePath) -> str:
    path, at = match["path"], match.start("path")
    before = match.string[max(0, at - 16) : at]
    if before.endswith(("<", "[")) and _TAG.match(match.string, at - 1):
        return path
    # What follows a placeholder was kept on purpose.
    return path if _PLACEHOLDER_IN_FRONT.search(before) else _shown_match(match, replace)


def _shown_frame(match: re.Match[str], replace: ReplacePath) -> str:
    path = match["path"] or match["quoted"]
    shown = shown_path(path, replace) if is_relative_path(path) and path[0] not in "/\\~" else path
    return (match["file"] or "") + shown


def _shown_quoted(match: re.Match[str], replace: ReplacePath) -> str:
    path = match["path"]
    kept = path.rstrip("\\") or path
    return match["quote"] + shown_path(kept, replace) + path[len(kept) :]


def _shown_url(match: re.Match[str], replace: ReplacePath) -> str:
    path = match["path"]
    kept = path.rstrip(_TRAILING) or path
    scheme = match["scheme"].partition(":")[0]
    return f"{scheme}:{shown_path('/' + unquote(kept), replace)}{path[len(kept) :]}"


def _shown_encoded(match: re.Match[str], replace: ReplacePath) -> str:
    path = unquote(match[0])
    if path.count("/") + path.count("\\") < 2:
        return match[0]
    return shown_path(path, replace).replace("/", "%2F")


# ------------------------------------------------------------ paths that every machine of a kind has


def is_of_the_system(path: str) -> bool:
    """Return whether `path`, with single forward slashes, is part of the operating system.

    Every part of it must be known: companies install their own programs below /usr as well.
    """
    if path in _SYSTEM_FILES or _DEVICE_FILE.fullmatch(path):
        return True
    folder = _SYSTEM_FOLDER.match(path)
    return folder is not None and all(_is_known(part) for part in path[folder.end() :].split("/"))


def is_prefix_of_a_python(folder: str) -> bool:
    """Return whether `folder`, which contains a Python library, is a standard location of systems and images."""
    return _PYTHON_PREFIX.fullmatch(folder) is not None


def _is_known(part: str) -> bool:
    return is_plain(part) or part.lower() in _NAMES or _LIBRARY_FILE.fullmatch(part) is not None


_SYSTEM_FILES: Final = words(
    """
    /etc/hosts /etc/hostname /etc/passwd /etc/group /etc/fstab /etc/resolv.conf /etc/os-release
    /etc/machine-id /etc/localtime /etc/nsswitch.conf /etc/ld.so.cache
    /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs /etc/ssl/openssl.cnf /etc/timezone
    /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1 /proc /sys /usr /etc /dev/kfd /dev/fuse
    /dev/ptmx /dev/tty /dev/random /dev/urandom
    """
)
_DEVICE_FILE = re.compile(
    r"/dev/(?:nvidia[0-9]{1,3}|nvidia(?:ctl|-uvm(?:-tools)?|-modeset)|dri/(?:card|renderD)[0-9]{1,3}|pts/[0-9]{1,4}"
    r"|infiniband/uverbs[0-9]{1,3}|loop[0-9]{1,3}|sd[a-z][0-9]{0,3}|nvme[0-9]{1,2}n[0-9]{1,2}(?:p[0-9]{1,2})?)"
)
_SYSTEM_FOLDER = re.compile(
    r"/(?:usr/(?:share|lib|lib32|lib64|libexec|bin|sbin|include|src)|bin|sbin|lib|lib64"
    r"|usr/local/cuda(?:-[0-9]{1,2}(?:\.[0-9]{1,2})?)?|opt/(?:rocm|cuda)(?:-[0-9.]{1,8})?"
    r"|proc(?:/(?:self|[0-9]{1,8}))?|sys)/"
)
_PYTHON_PREFIX = re.compile(
    r"(?:/usr(?:/local)?|/opt/(?:conda|miniconda3?|anaconda3?|miniforge3?|mambaforge|python))(?:/envs/base)?"
    r"(?:/lib(?:64)?/python[23](?:\.\d{1,2})?)?"
)
# libcuda.so.1, cc1plus, python3.11, cudnn_ops.h
_LIBRARY_FILE = re.compile(
    r"(?:lib)?(?:cuda|cudart|cudnn|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvrtc|nvidia|nccl|mpi|stdc\+\+|gcc|gcc_s"
    r"|c|m|z|pthread|dl|rt|ssl|crypto|ibverbs|numa|gomp|omp|tbb|mkl|blas|lapack|openblas|hdf5|GL|EGL|ffi|python)"
    r"[\w-]{0,24}(?:\.(?:so|h|hpp|a|la|pc))?(?:\.?[0-9]{1,6}){0,4}"
)
_NAMES: Final = words(
    """
    aarch64-linux-gnu apt awk bash block bus c++ ca-certificates cat cc certs cgroup class cmake cmdline cp
    cpuinfo curl cwd dash dejavu dejavusans.ttf dict doc drm env exe fd ffmpeg file fonts fs g++ gcc git
    git-core gpu grep gzip i386-linux-gnu java jvm kernel kmod ld ld-linux-x86-64.so.2 lib-dynload libc.so.6
    llvm loadavg locale ls make man maps meminfo mime misc mount mounts mpirun nice ninja node nohup numactl
    nvcc nvidia nvidia-smi opencl openmpi pci perl perl5 pid_max pkg-config proc ps rocm rocm-smi root rsync sed
    self sh smaps srun ssh ssl stat statm status stdio.h stdlib.h strace string.h sudo sys tar taskset tcp
    terminfo time timeout torchrun truetype type types.h uname unistd.h uptime utc vmstat wget words x11
    x86_64-linux-gnu xz zoneinfo zsh
    """
)
"""Names in system folders of every machine, besides the plain words."""
