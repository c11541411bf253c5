"""The sftp subsystem of the embedded host: plain file operations of the calling user, relative paths under its home."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import paramiko
from paramiko import sftp

P = ParamSpec("P")
R = TypeVar("R")


def _errno_as_status(work: Callable[P, R]) -> Callable[P, R | int]:
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R | int:
        try:
            return work(*args, **kwargs)
        except OSError as error:
            return paramiko.SFTPServer.convert_errno(error.errno or 0)

    return wrapped


class Handle(paramiko.SFTPHandle):
    """An open file; read and write share one descriptor."""

    def __init__(self, flags: int, file: Any) -> None:
        super().__init__(flags)
        self.readfile = self.writefile = file

    def stat(self) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))

    def chattr(self, attr: paramiko.SFTPAttributes) -> int:
        paramiko.SFTPServer.set_file_attr(self.readfile.name, attr)
        return sftp.SFTP_OK


class Files(paramiko.SFTPServerInterface):
    """Not confined to a folder: who may log in may also run commands. `server.home` anchors relative paths."""

    def __init__(self, server: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(server, *args, **kwargs)
        self._home = str(server.home)

    def _at(self, path: str) -> str:
        return os.path.normpath(os.path.join(self._home, path))

    def canonicalize(self, path: str) -> str:
        return self._at(path)

    @_errno_as_status
    def list_folder(self, path: str) -> list[paramiko.SFTPAttributes]:
        with os.scandir(self._at(path)) as entries:
            return [
                paramiko.SFTPAttributes.from_stat(entry.stat(follow_symlinks=False), entry.name) for entry in entries
            ]

    @_errno_as_status
    def stat(self, path: str) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.stat(self._at(path)))

    @_errno_as_status
    def lstat(self, path: str) -> paramiko.SFTPAttributes:
        return paramiko.SFTPAttributes.from_stat(os.lstat(self._at(path)))

    @_errno_as_status
    def open(self, path: str, flags: int, attr: paramiko.SFTPAttributes) -> Handle:
        mode = attr.st_mode if attr is not None and attr.st_mode else 0o666
        descriptor = os.open(self._at(path), flags | os.O_CLOEXEC, mode)
        appending = bool(flags & os.O_APPEND)
        access = flags & os.O_ACCMODE
        how = {os.O_WRONLY: "ab" if appending else "wb", os.O_RDWR: "ab+" if appending else "rb+"}.get(access, "rb")
        return Handle(flags, os.fdopen(descriptor, how))

    @_errno_as_status
    def remove(self, path: str) -> int:
        os.remove(self._at(path))
        return sftp.SFTP_OK

    @_errno_as_status
    def rename(self, oldpath: str, newpath: str) -> int:
        if os.path.lexists(self._at(newpath)):
            return sftp.SFTP_FAILURE  # what the protocol asks for; posix_rename is the one that replaces
        os.rename(self._at(oldpath), self._at(newpath))
        return sftp.SFTP_OK

    @_errno_as_status
    def posix_rename(self, oldpath: str, newpath: str) -> int:
        os.replace(self._at(oldpath), self._at(newpath))
        return sftp.SFTP_OK

    @_errno_as_status
    def mkdir(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        os.mkdir(self._at(path), attr.st_mode if attr is not None and attr.st_mode else 0o777)
        return sftp.SFTP_OK

    @_errno_as_status
    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return sftp.SFTP_OK

    @_errno_as_status
    def chattr(self, path: str, attr: paramiko.SFTPAttributes) -> int:
        paramiko.SFTPServer.set_file_attr(self._at(path), attr)
        return sftp.SFTP_OK

    @_errno_as_status
    def symlink(self, target_path: str, path: str) -> int:
        os.symlink(target_path, self._at(path))
        return sftp.SFTP_OK

    @_errno_as_status
    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))
