"""Paths that every machine of a kind has: they tell nothing about whose it is."""

from __future__ import annotations

import re
from typing import Final

from toolkit.privacy.harmless_words import is_plain


def is_of_the_system(path: str) -> bool:
    """Say whether `path`, with single forward slashes, leads to a part of the operating system, and to nothing else.

    Every part of it has to be known: a firm installs its own programs below /usr as well.
    """
    if path in _FILES or _DEVICE.fullmatch(path):
        return True
    folder = _FOLDER.match(path)
    return folder is not None and all(_is_known(part) for part in path[folder.end() :].split("/"))


def is_prefix_of_a_python(folder: str) -> bool:
    """Say whether `folder`, which has a Python's library below it, is where systems and images put theirs."""
    return _PREFIX.fullmatch(folder) is not None


def _is_known(part: str) -> bool:
    return is_plain(part) or part.lower() in _NAMES or _LIBRARY_FILE.fullmatch(part) is not None


_FILES: Final = frozenset(
    {
        *("/etc/hosts", "/etc/hostname", "/etc/passwd", "/etc/group", "/etc/fstab", "/etc/resolv.conf"),
        *("/etc/os-release", "/etc/machine-id", "/etc/localtime", "/etc/nsswitch.conf", "/etc/ld.so.cache"),
        *("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/timezone"),
        *("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/proc", "/sys", "/usr", "/etc"),
        *("/dev/kfd", "/dev/fuse", "/dev/ptmx", "/dev/tty", "/dev/random", "/dev/urandom"),
    }
)
_DEVICE = re.compile(
    r"/dev/(?:nvidia[0-9]{1,3}|nvidia(?:ctl|-uvm(?:-tools)?|-modeset)|dri/(?:card|renderD)[0-9]{1,3}|pts/[0-9]{1,4}"
    r"|infiniband/uverbs[0-9]{1,3}|loop[0-9]{1,3}|sd[a-z][0-9]{0,3}|nvme[0-9]{1,2}n[0-9]{1,2}(?:p[0-9]{1,2})?)"
)
_FOLDER = re.compile(
    r"/(?:usr/(?:share|lib|lib32|lib64|libexec|bin|sbin|include|src)|bin|sbin|lib|lib64"
    r"|usr/local/cuda(?:-[0-9]{1,2}(?:\.[0-9]{1,2})?)?|opt/(?:rocm|cuda)(?:-[0-9.]{1,8})?"
    r"|proc(?:/(?:self|[0-9]{1,8}))?|sys)/"
)
_PREFIX = re.compile(
    r"(?:/usr(?:/local)?|/opt/(?:conda|miniconda3?|anaconda3?|miniforge3?|mambaforge|python))(?:/envs/base)?"
    r"(?:/lib(?:64)?/python[23](?:\.\d{1,2})?)?"
)
# libcuda.so.1, cc1plus, python3.11, cudnn_ops.h
_LIBRARY_FILE = re.compile(
    r"(?:lib)?(?:cuda|cudart|cudnn|cublas|cublasLt|cufft|curand|cusolver|cusparse|nvrtc|nvidia|nccl|mpi|stdc\+\+|gcc|gcc_s"
    r"|c|m|z|pthread|dl|rt|ssl|crypto|ibverbs|numa|gomp|omp|tbb|mkl|blas|lapack|openblas|hdf5|GL|EGL|ffi|python)"
    r"[\w-]{0,24}(?:\.(?:so|h|hpp|a|la|pc))?(?:\.?[0-9]{1,6}){0,4}"
)
_KNOWN_NAMES: Final = """
aarch64-linux-gnu apt awk bash block bus c++ ca-certificates cat cc certs cgroup class cmake cmdline cp
cpuinfo curl cwd dash dejavu dejavusans.ttf dict doc drm env exe fd ffmpeg file fonts fs g++ gcc git
git-core gpu grep gzip i386-linux-gnu java jvm kernel kmod ld ld-linux-x86-64.so.2 lib-dynload libc.so.6
llvm loadavg locale ls make man maps meminfo mime misc mount mounts mpirun nice ninja node nohup numactl
nvcc nvidia nvidia-smi opencl openmpi pci perl perl5 pid_max pkg-config proc ps rocm rocm-smi root rsync sed
self sh smaps srun ssh ssl stat statm status stdio.h stdlib.h strace string.h sudo sys tar taskset tcp
terminfo time timeout torchrun truetype type types.h uname unistd.h uptime utc vmstat wget words x11
x86_64-linux-gnu xz zoneinfo zsh
"""
_NAMES: Final = frozenset(_KNOWN_NAMES.split())
"""Names below the folders of a system that are on every machine, beside the plain words."""
