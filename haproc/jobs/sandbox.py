"""The sandbox of a job: which of the host it has, as bubblewrap's arguments.

Everything that is not listed is missing, and everything but the working folder is read-only. The
program has namespaces of its own for processes, mounts, IPC and users, no capabilities, and no way
to new privileges. It shares the network, by which it reaches the ring.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/ca-trust"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf"),
    *("/etc/ca-certificates", "/etc/crypto-policies", "/etc/hosts", "/etc/resolv.conf"),
    *("/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/localtime", "/etc/passwd"),
    *("/etc/group", "/etc/ld.so.cache", "/etc/mime.types", "/etc/alternatives"),
)
"""What Python, gRPC and Arrow read of a system; no folder in which HAProc's files may be, such as
those of private keys."""
SHARED_MEMORY_BYTES: Final = 64 << 20
"""Of /dev/shm; as containers have it."""
USER_NAMESPACE_FD: Final = 3
"""Where the supervisor puts the namespace that it has made (`NAMESPACE_FD` there)."""
LINKS_MAX: Final = 16

_NAMESPACES: Final = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
)
_AS_USER: Final = ("--unshare-user", "--disable-userns")
_AS_ROOT: Final = (
    *("--userns", str(USER_NAMESPACE_FD)),
    *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
)
"""The first process makes the program another user's; it keeps these two to itself."""
_DEVICES: Final = (
    *("--proc", "/proc", "--dev", "/dev"),
    *("--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),
)
_TMP: Final = Path("/tmp")


def sandboxed(
    bwrap: str,
    command: Sequence[str],
    folder: Path,
    readable: Sequence[Path],
    hidden: Sequence[Path],
    as_root: bool,
) -> list[str]:
    """Return the command that runs another one in a sandbox.

    ``folder`` is writable, ``readable`` can be read beside the system's files, except for what lies
    in ``hidden``. ``as_root``: the caller is root and gives a user namespace as a descriptor.
    """
    shown = sorted({*map(Path, SYSTEM), *readable})
    covered = _seen(hidden, shown)
    made: list[str] = [bwrap, *_NAMESPACES, *(_AS_ROOT if as_root else _AS_USER)]
    made += [*_open_to_all(_parents([*shown, folder])), *_DEVICES]
    for path in shown:
        made += ["--ro-bind-try", str(path), str(path)]
    for path in covered:
        made += ["--perms", "0755", "--tmpfs", str(path)]
    made += _open_to_all(_parents([folder]) if covered else ())
    made += ["--bind", str(folder), str(folder)]
    if not any(path.is_relative_to(_TMP) for path in (*shown, folder)):
        made += ["--bind", str(folder / "tmp"), str(_TMP)]
    for path in (*covered, Path("/dev"), Path("/proc"), Path("/")):
        made += ["--remount-ro", str(path)]
    return [*made, "--chdir", "/", "--", *command]


def _seen(hidden: Iterable[Path], shown: Sequence[Path]) -> list[Path]:
    """Return where what is to be hidden would be found below what is shown, links followed."""
    found = set()
    for secret in (each.resolve() for each in hidden):
        for path in shown:
            if secret.is_relative_to(real := path.resolve()):
                found.add(path / secret.relative_to(real))
    return sorted(found)


def _parents(paths: Iterable[Path]) -> list[Path]:
    """Return all folders that lead to these."""
    return sorted({parent for path in paths for parent in path.parents if parent != Path("/")})


def _open_to_all(folders: Iterable[Path]) -> list[str]:
    """Return what makes these, so that whoever the program's user is can go through them."""
    return [part for each in folders for part in ("--perms", "0755", "--dir", str(each))]


def homes_of(python: Path) -> list[Path]:
    """Return the folders of an interpreter with its packages.

    Of an environment, those of the interpreter that it was made from belong to them, too.
    """
    found = set()
    for _ in range(LINKS_MAX):
        found.add(python.parent.parent)
        if not python.is_symlink():
            break
        python = Path(os.path.normpath(python.parent / python.readlink()))
    return sorted(home for home in found if home != Path("/"))
